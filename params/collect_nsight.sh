#!/usr/bin/env bash
# Count FLOPs, bytes and time of a program's GPU kernels with Nsight Compute, for 05_roofline (-p nsight FILE).
#   params/collect_nsight.sh OUT.csv [program and arguments]
#   params/collect_nsight.sh OUT.csv --cell resnet50/b64/fp32
# --cell: a few batches of one cell of params/matrix.yaml, whose rows are thrown away. Without a program: a short run of W5.
# Which counters is in params/nsight_metrics.yaml. NCU_OPTIONS adds options, such as "--launch-skip 500 --launch-count 200":
# every kernel is run several times, so profile few of them.
# LC_ALL=C: ncu writes numbers as the locale does, and the import reads English ones (1,234.5).
# Kernels keep the caches and the clocks that they would have without the profiler.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python
out=${1:?usage: collect_nsight.sh OUT.csv [program and arguments]}
shift
if [ $# -eq 0 ]; then
    set -- "$python" -m papermill "$root/notebooks/02_profile.ipynb" /dev/null -p workload W5 -p device cuda -p profile False \
        -p warmup_iters 2 -p warmup_s 0 -p iters 2
fi
if [ "$1" = --cell ]; then
    cell=${2:?usage: collect_nsight.sh OUT.csv --cell MODEL/bBATCH/PRECISION}
    LIB_OUTPUT=$(mktemp -d)
    trap 'rm -rf "$LIB_OUTPUT"' EXIT
    export LIB_OUTPUT PYTHONPATH="$root"
    set -- "$python" -m lib measure matrix --device cuda --cells "$cell" --repeats 1 -p profile False -p warmup_iters 2 \
        -p warmup_s 0 -p iters 5 -p budget_s 0
fi
command -v ncu >/dev/null || { echo "error: ncu is not on the PATH; it comes with the CUDA toolkit" >&2; exit 2; }
[ ! -e "$out" ] || { echo "error: $out exists already and is not overwritten" >&2; exit 2; }

known=$(ncu --query-metrics 2>&1) || {
    echo "error: ncu cannot list its metrics: $(tail -n 1 <<<"$known")" >&2
    exit 2
}
wanted=$(cd "$root" && "$python" -c '
from lib.config.definitions import load_metrics
for metric in load_metrics().values():
    print(metric.name, "optional" if metric.optional else "needed")')
metrics=""
while read -r name need; do
    # the listing has names without the roll-up (.sum) behind them
    if grep -qE "^ *${name%%.*}( |$)" <<<"$known"; then
        metrics=${metrics:+$metrics,}$name
    elif [ "$need" = optional ]; then
        echo "not on this GPU, left out: $name" >&2
    else
        echo "error: this GPU or ncu has no metric $name; edit params/nsight_metrics.yaml (ncu --query-metrics lists them)" >&2
        exit 2
    fi
done <<<"$wanted"

status=0
# shellcheck disable=SC2086  # several options in one variable
LC_ALL=C ncu --csv --page raw --print-units base --target-processes all --clock-control none --cache-control none \
    --metrics "$metrics" --log-file "$out" ${NCU_OPTIONS:-} "$@" || status=$?
if grep -q ERR_NVGPUCTRPERM "$out" 2>/dev/null; then
    echo "error: the driver lets only administrators read the counters (ERR_NVGPUCTRPERM)." >&2
    echo "Run this as root, or have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0; in a container it also" >&2
    echo "needs --cap-add SYS_ADMIN." >&2
    exit 1
fi
grep -q '^"ID"' "$out" 2>/dev/null || { echo "error: no kernels were profiled; see $out" >&2; exit 1; }
echo "$out: give it to 05_roofline with -p nsight $out" >&2
exit "$status"
