#!/usr/bin/env bash
# Measure all that a machine with a GPU can tell, step by step, then pack it into data/gpu/bundle.zip: make gpu
# DEVICE: device id (cuda:0). BUDGET_MIN: minutes of this call (30). SLOTS: CPU slots of the step jobs (1). PY: which Python.
# Another call goes on where this one stopped: data/gpu/STEP.done is there once a step is done. STEP.log has its output.
#
#     step NAME SECONDS "PACKAGES" MODULE ARGUMENT...
#
# SECONDS is what the step takes at most. A step that is told {seconds}, its time in this call, or {total}, with the time of
# earlier calls, runs for what is left of it; others wait for a call in which they fit. PACKAGES: only this step needs them.
set -u
cd "$(dirname "$0")/.." || exit
least=30  # seconds worth starting a timed step for
late=60   # seconds that a step may overrun, beside half of its time
python=${PY:-.venv/bin/python}
budget_min=${BUDGET_MIN:-30}
data=${LIB_OUTPUT:-$PWD}/data
folder=$data/gpu
[[ $budget_min =~ ^[1-9][0-9]{0,3}$ ]] || { echo "error: BUDGET_MIN=$budget_min is no whole number of minutes" >&2; exit 2; }
deadline=$((budget_min * 60 - 90))  # bundle and check come after it
[ $deadline -ge $((budget_min * 30)) ] || deadline=$((budget_min * 30))

missing() {  # print those packages that this Python lacks
    "$python" -c 'import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        version(name)
    except PackageNotFoundError:
        print(name)' "$@" | paste -sd " "
}

running=
trap 'kill -INT $running 2>/dev/null; wait; exit 130' INT TERM

call() {  # call LOG SECONDS MODULE ARGUMENT...: run a module; after SECONDS interrupt it, and kill it 20 s later
    local log=$1 limit=$2
    shift 2
    echo "\$ $*" >>"$log"
    timeout --signal=INT --kill-after=20 "$limit" env --default-signal=INT "$python" -m "$@" >>"$log" 2>&1 </dev/null &
    running=$!
    if [ -n "${until_file:-}" ]; then  # interrupt it as soon as there is a new file of this pattern in data/
        local before
        before=$(compgen -G "$data/$until_file")
        while kill -0 $running 2>/dev/null; do
            if [ "$(compgen -G "$data/$until_file")" != "$before" ]; then
                kill -INT $running
                wait $running
                return 0
            fi
            sleep 0.1
        done
    fi
    wait $running
}

left=()
step() {
    local name=$1 seconds=$2 packages=$3 is_timed= given=$2 spent=0 now=$SECONDS reason= status
    shift 3
    [ ! -e "$folder/$name.done" ] || return 0
    if [[ "$*" == *"{seconds}"* || "$*" == *"{total}"* ]]; then
        is_timed=1
        [ ! -e "$folder/$name.spent" ] || spent=$(<"$folder/$name.spent")
        given=$((seconds - spent))
        [ $given -le $((deadline - now)) ] || given=$((deadline - now))
    fi
    # shellcheck disable=SC2086 # names of packages
    if absent=$(missing $packages) && [ -n "$absent" ]; then
        reason="left out: this Python lacks $absent"
    elif [ $((deadline - now)) -lt "$given" ] || { [ $is_timed ] && [ $given -lt $least ]; }; then
        reason="no time left in this call"
    else
        set -- "${@//'{seconds}'/$given}"
        set -- "${@//'{total}'/$((spent + given))}"
        local limit=$((given * 3 / 2))
        [ $limit -le $((deadline - now)) ] || limit=$((deadline - now))
        limit=$((limit + late))
        call "$folder/$name.log" $limit "$@"
        status=$?
        local took=$((SECONDS - now))
        if [ $status -ne 0 ] && [ $status -ne 124 ] && [ $took -lt $limit ]; then  # 124: it was ended by timeout
            reason="failed with status $status (see $folder/$name.log)"
        elif [ $is_timed ]; then  # one that was ended late keeps what it measured, and had its time
            echo $((spent + given)) >"$folder/$name.spent"
            [ $((seconds - spent - given)) -lt $least ] || reason="to be continued"
        elif [ $status -ne 0 ]; then
            reason="ended after $took s (see $folder/$name.log)"
        fi
        [ -n "$reason" ] || touch "$folder/$name.done"
    fi
    echo "$name: ${reason:-done}"
    [ -z "$reason" ] || left+=("$name")
}

everywhere="torch torchvision numpy pandas pyarrow scikit-learn scipy matplotlib seaborn lightgbm medmnist pydantic
    ruamel.yaml filelock psutil fsspec nvidia-ml-py ipykernel ipywidgets papermill jupyter_client nbformat tqdm"
# shellcheck disable=SC2086
absent=$(missing $everywhere)
[ -z "$absent" ] || { echo "error: $python lacks $absent; install them as requirements.txt pins them" >&2; exit 2; }
here=$("$python" -c 'import sys
from lib.errors import InputError
from lib.measure import machine
try:
    device = str(machine.device(sys.argv[1]))
except InputError as error:
    sys.exit(f"error: {error}")
kind = device.partition(":")[0]
print(device, sum(name.partition(":")[0] == kind for name in machine.devices()))' "${DEVICE:-cuda:0}") || exit 2
device=${here% *}
cards=${here#* }
mkdir -p "$folder"

finetune="transformers accelerate torchmetrics tensorboard kornia mlflow"
networks="timm transformers"
tests="pytest pytest-xdist hypothesis"
pytest="pytest -q -m cuda -n 0 -p no:cacheprovider"
# First, within four minutes, a little of everything that only a GPU can show. Profiles have the memory of the card and, by its
# own meter, idle and busy power.
step profiles 108 "" lib run 02 --devices "$device" -p warmup_s 1
step profile_switches 18 "" lib run 02 --devices "$device" --workloads W5 -p warmup_s 1 -p precision amp \
    -p cudnn_benchmark true -p nvtx true
step convolutions 30 "" lib run 03 --devices "$device" -p op conv2d -p grid may19_convolution -p latency_type both \
    -p name gpu_convolutions -p budget_s "{total}"
step matrix 48 "" lib measure matrix --device "$device" \
    --cells resnet50/b64/fp32,vgg16/b64/fp32,mobilenet_v2/b64/fp32/sgd --repeats 1 \
    -p warmup_iters 3 -p warmup_s 0 -p iters 10 -p budget_s 10
step finetune 24 "$finetune" lib finetune --config params/gpu_finetune_short.yaml --device "$device"
# Then what takes longer, the most useful first.
step networks 240 "$networks" lib measure networks --plan params/networks_gpu.yaml --device "$device" --name gpu \
    --budget-s "{seconds}"
step sweep 90 "" lib run 03 --devices "$device" -p op all -p name gpu -p budget_s "{total}"
step sweep_bf16 90 "" lib run 03 --devices "$device" -p op all -p dtype bf16 -p name gpu_bf16 -p budget_s "{total}"
step ceilings 42 "" lib run 01 --devices "$device"
step roofline 60 "" lib run 05 --devices "$device"
step jobs 60 "SQLAlchemy accelerate" lib run-jobs params/gpu_jobs.csv --slots "${SLOTS:-1}" --policy met
step networks_energy 180 "$networks" lib measure networks --plan params/networks_gpu.yaml --device "$device" \
    --name gpu_energy --energy-s 2 --budget-s "{seconds}"
# shellcheck disable=SC2086
step card_tests 240 "$tests transformers accelerate torchmetrics mlflow SQLAlchemy" $pytest \
    tests/test_campaign.py tests/test_cuda.py tests/test_energy.py tests/test_finetune.py tests/test_gpus.py \
    tests/test_networks.py tests/test_profiler_events.py tests/test_profiles.py tests/test_recurrent.py \
    tests/test_steps.py
step sweep_energy 180 "" lib run 03 --devices "$device" -p op all -p energy_s 2 -p name gpu_energy -p budget_s "{total}"
step networks_compiled 180 "" lib measure networks --plan params/networks_gpu_compiled.yaml --device "$device" \
    --name gpu_compiled --budget-s "{seconds}"
step sweep_notebook 60 "" lib run 03 --devices "$device"
until_file="training/*/gpu/checkpoints/state-*" \
    step finetune_cut 60 "$finetune" lib finetune --config params/gpu_finetune.yaml --device "$device"
step finetune_resumed 60 "$finetune" lib finetune --config params/gpu_finetune.yaml --device "$device" --resume
step finetune_distributed 60 "$finetune" torch.distributed.run --standalone --nproc-per-node "$cards" \
    -m lib finetune --config params/gpu_finetune.yaml
# shellcheck disable=SC2086
step dashboard 90 "$tests fastapi uvicorn SQLAlchemy Jinja2" $pytest tests/test_dashboard_runner.py

# Pack it, and see whether the bundle replays as a reference.
bundle=$folder/bundle.zip
check=$folder/check
rm -rf "$bundle" "$check"
result="replays as a reference"
if ! call "$folder/check.log" 600 lib data pack "$bundle"; then
    result="not packed (see $folder/check.log)"
elif [[ " ${left[*]-} " =~ \ (profiles|sweep|ceilings)\  ]]; then
    result="replays once profiles, sweep and ceilings are done"
else
    export LIB_OUTPUT=$check
    call "$folder/check.log" 600 lib data unpack "$bundle" --name check &&
        call "$folder/check.log" 600 lib run 01 02 03 05 --source replay --devices "${device%%:*}" \
            -p reference "$(basename "$check"/data/imported/*)" ||
        result="does not replay (see $folder/check.log)"
fi
rm -rf "$check"
echo "$bundle: $result"
[ ${#left[@]} -eq 0 ] || echo "not done: ${left[*]}"
[ ${#left[@]} -eq 0 ] && [ "$result" = "replays as a reference" ]
