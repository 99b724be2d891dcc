"""The tables: every column with its type, meaning and allowed values, checked strictly on write and on read.

``_DEFINITIONS`` has a section per table and a line per column: name, type and meaning, two spaces or more between them. A
meaning may go on in an indented line. A type is a kind of ``columns.Column``, or the only texts allowed, ``|`` between them.
``?`` says that it may be empty. A number is from 0 up, a count from 1, unless ``>= LEAST`` follows, or ``signed``: any number.
Then ``= DEFAULT`` (a text in quotes) and ``since VERSION``. A section ``[*name]`` is no table: a line ``*name`` stands for its
columns, or for one column of ``[*columns]``.
"""

import re
from dataclasses import replace

from lib.columns import DTYPES, Column, Columns, validated
from lib.errors import choices, entry

SCHEMA_VERSION = "6"
_DEFINITIONS = """
[*columns]
tf32                  bool = False since 3      whether fp32 may have been multiplied as TF32 on a GPU
verdict               stable|noisy|unusable     how far to trust the row
backend               cpu|cuda|mps              device type
device                text                      device id: cpu, cuda:0 or mps
dtype                 text                      element type
precision             fp32|bf16|fp16            fp32, or the autocast type
threads               int >= 1                  torch CPU threads
arch                  text                      model name
batch_size            int >= 1                  samples per batch
config                text                      hash of the configuration: what is measured and how
op                    text                      operator family
learner               text                      name of the learner
data_source           medmnist|synthetic|imagefolder|unofficial  source of the images; unofficial: a file with the name
    of a MedMNIST file and other content

[*ids]
hardware_id           text                      which machine: a hash of its hardware
software_id           text                      which software: a hash of versions, threads and math settings

[*work]
flops                 float?                    FLOPs from the shapes
bytes                 float?                    compulsory bytes from the shapes

[*interval]
low_ms                float?                    90 % interval, low end
high_ms               float?                    90 % interval, high end

[*energy]
power_w               float? = nan since 2      mean power during the measurement, idle power included; empty: not
    measured
idle_w                float? = nan since 2      idle power, logged in the same session; empty: not measured
energy_method         text? = "not measured" since 2  the meter and its reading (energy counter, or integrated power),
    or not measured
energy_n              count? >= 0 = 0 since 2   samples of the meter during the measurement
energy_disagreement   float? signed = nan since 2  integrated power / energy counter - 1; empty unless both were read
energy_reason         text? = "measured before power was recorded" since 2  why there is no energy; empty where there
    is

[*parameters]
kind                  text?                     function within the family, such as relu
batch                 count?                    samples, or matrices of a batched GEMM
in_channels           count?                    input channels
out_channels          count?                    output channels
depth                 count?                    input depth
height                count?                    input height
width                 count?                    input width
kernel_d              count?                    kernel along depth
kernel_h              count?                    kernel along height
kernel_w              count?                    kernel along width
stride_d              count?                    stride along depth
stride_h              count?                    stride along height
stride_w              count?                    stride along width
padding_d             count? >= 0               padding along depth
padding_h             count? >= 0               padding along height
padding_w             count? >= 0               padding along width
dilation_d            count?                    dilation along depth
dilation_h            count?                    dilation along height
dilation_w            count?                    dilation along width
out_depth             count?                    output depth of adaptive pooling
out_height            count?                    output height of adaptive pooling
out_width             count?                    output width of adaptive pooling
groups                count?                    groups of a convolution; in_channels: depthwise
bias                  count? >= 0               1: with a bias
input_grad            count? >= 0               1: the backward also gives the input's gradient
gemm_m                count?                    rows of the left matrix
gemm_k                count?                    columns of the left matrix, which are summed over
gemm_n                count?                    columns of the right matrix
heads                 count?                    attention heads
q_len                 count?                    queries
kv_len                count?                    keys and values
head_dim              count?                    width of a head
rows                  count?                    rows that are normalised one by one
columns               count?                    elements that are normalised or reduced together
elements              count?                    elements of the output
pieces                count?                    tensors that are joined
outer                 count?                    slow index of the flattened tensor
inner                 count?                    fast index of the flattened tensor; pixels of a channel in batch norm
broadcast             text?                     how a smaller second input is repeated
inplace               count? >= 0               1: writes over its input
training              count? >= 0               1: with the batch's own statistics
layout                text?                     memory order: contiguous, channels_last, transposed; of a GEMM's
    matrices: n by rows, t by columns

[*timed]
*dtype
pass                  forward|backward          forward or backward pass

[*how]
latency_type          kernel|end_to_end         kernel: calls back to back; end_to_end: each call on its own,
    synchronised
cache                 warm|cold                 warm: buffers that were just used; cold: buffers that no cache holds

[*status]
status                ok|skipped|failed         ok, or the reason why there is no time
reason                text?                     error message; empty when the status is ok

[profile]
run_id                text                      the run, also the start of the file's name
workload_id           text                      id in params/workloads.yaml
dataset               text                      MedMNIST flag or imagefolder
model                 text                      model name
task_type             train|eval|test           what the pass does
split                 train|val|test            which part of the dataset
epoch                 int >= -1                 epoch from 0; -1 in evaluation
batch_idx             int                       batch within the pass
global_step           int                       batches of this pass type so far
batch_size            int >= 1                  samples in this batch
channels              int >= 1                  input channels
dim1                  int >= 1                  H (2D) or D (3D)
dim2                  int >= 1                  W (2D) or H (3D)
dim3                  int                       0 (2D) or W (3D)
device_type           cpu|cuda|mps              device type
device_index          int >= -1                 -1 on the CPU
num_workers           int                       loader worker processes
*precision
data_time_ms          float                     loader wait + host-to-device copy
forward_time_ms       float                     forward pass and loss
backward_time_ms      float                     backward pass; 0 in evaluation
step_time_ms          float                     the whole step, timed independently; its phases sum to it
data_time_pct         float                     data_time_ms / step_time_ms * 100
forward_time_pct      float                     forward_time_ms / step_time_ms * 100
backward_time_pct     float                     backward_time_ms / step_time_ms * 100
images_per_sec        float                     batch_size / step time
loss                  float? signed             loss of this batch
lr                    float?                    learning rate; empty in evaluation
cuda_mem_alloc_mb     float                     allocated by torch on the GPU; 0 elsewhere
cuda_mem_reserved_mb  float                     reserved by torch on the GPU; 0 elsewhere
wall_time_s           float                     seconds since the pass began
loader_wait_ms        float                     waiting for the data loader
h2d_ms                float                     host-to-device copy and conversion
optimizer_ms          float                     optimizer step and zeroing of gradients; 0 in evaluation
pipelined_ms          float?                    mean step of an unsynchronised, unprofiled pass of the same run; empty
    where not run
energy_j              float?                    energy of the step, idle power included; empty: not measured
peak_rss_mb           float                     peak resident memory of the process so far
*threads
warmup                bool                      a warm-up row: stays in the file, but enters no statistic
sync                  none|event|synchronize    how phases were clocked
*data_source
*ids
*tf32

[runs]
run_id                text                      the run
label                 text                      the run's name for people
timestamp             text                      UTC start, ISO 8601
hostname              text                      machine name
*arch
*backend
device_name           text                      processor or GPU name
*batch_size
warmup_iters          int                       warm-up batches, not counted
measured_iters        int >= 1                  batches of the unsynchronised pass
*precision
elapsed_sec           float                     the unsynchronised pass, synchronised before and after
images_per_sec        float                     images_processed / elapsed_sec
images_processed      int >= 1                  images in elapsed_sec
workload_id           text                      id in params/workloads.yaml
dataset               text                      MedMNIST flag or imagefolder
*data_source
resolution            native|resized            native or resized
channels_last         bool                      switch
grad_accum_steps      int >= 1                  switch
num_workers           int                       switch
pin_memory            bool                      switch
prefetch_factor       int                       switch; 0 without workers
augment               bool                      switch
deterministic         bool                      switch
cudnn_benchmark       bool                      switch
tf32                  bool                      TF32 allowed on the device
*threads
seed                  int                       random seed
cpu_percent           float                     CPU time of this process and its workers, % of one core
peak_rss_mb           float                     peak resident memory of the process
other_cpu_cores       float                     CPU cores used by other processes during the measurement
involuntary_switches_per_s  float                     involuntary context switches per second
step_median_ms        float?                    median profiled training step, full batches, warm-up left out
step_iqr_ms           float?                    its interquartile range
step_low_ms           float?                    95 % bootstrap interval of the median, low end
step_high_ms          float?                    95 % bootstrap interval of the median, high end
step_n                int                       steps in that median
*verdict
reason                text?                     why it is not stable; empty when it is
*ids
image_j               float? = nan since 2      energy of training on one image, in the unsynchronised pass, idle power
    included; empty: not measured
*energy
optimizer             adam|sgd = "adam" since 3  what changed the weights
lr                    float? = nan since 5      learning rate; empty: not recorded
momentum              float? = nan since 5      of sgd; empty: not recorded
weight_decay          float? = nan since 5      of sgd; empty: not recorded
data_root             text = "not recorded" since 5  folder of images, or medmnist for its files
torch_version         text = "not recorded" since 5  version of torch
random_crop           bool = False since 5      switch

[ceilings]
*device
*dtype
peak_gflops           float?                    best rate of a matrix product (a multiply-add counts 2); empty on
    bandwidth rows
peak_gbps             float?                    triad bandwidth (24 bytes per fp64 element); empty on compute rows
level                 compute|L1|L2|L3|RAM|device  memory level that holds the working set
source                measured|vendor           measured here or stated by the vendor
method                text                      how
working_set_mb        float?                    bytes touched by one call, in 10^6; empty for a vendor's
threads               int                       torch CPU threads; 0 for a vendor's
median_ms             float?                    median time of one call; empty for a vendor's
iqr_ms                float?                    its interquartile range
n                     int                       samples; 0 for a vendor's
*verdict
*ids

[overheads]
*device
what                  text                      timer_step, timer_call, timer_jitter, launch, first_touch
median_us             float                     median
p99_us                float                     99th percentile
n                     int >= 1                  samples
method                text                      how
*ids

[configs]
*config
*op
parameters            text                      its parameters, as JSON
*timed
*how
*work
footprint_mb          float?                    memory needed to time it, at most, in 10^6 bytes
*status

[repeats]
*config
round                 int                       round of the sweep
latency_ms            float?                    median of this visit's samples
n                     int                       samples of this visit
calls                 int                       calls in a row in one sample
spread_ms             float?                    interquartile range of the samples
at_s                  float                     seconds since the worker began
visit_s               float                     length of the visit, set-up included
other_cores           float                     CPU cores used by other processes during the measurement
stolen_cores          float                     CPU cores taken by the host (steal time) during the measurement
yardstick_ms          float?                    time of the reference kernel before or after the visit, the slower of
    the two; empty on GPUs
*status
gpu_others            float? = nan since 3      share of the GPU's time that other processes used; empty: no GPU, or
    not known
gpu_mhz               float? = nan since 3      clock of the GPU's multiprocessors after the visit; empty: no GPU, or
    not readable
gpu_throttled         text? = "" since 3        what throttled the GPU; empty: nothing
gpu_unknown           text? = "" since 3        why use by other processes is unknown; empty: it is known, or no GPU

[energies]
*config
energy_j              float?                    energy of one call, idle power included
calls                 int                       calls in the loop
loop_s                float                     length of the loop, all of its set-up included
*energy

[sweep]
*op
*parameters
*timed
*device
latency_ms            float?                    median over the rounds' medians
latency_iqr_ms        float?                    interquartile range over the rounds
n                     int                       rounds
*how
*work
gflops                float?                    flops / latency
gbps                  float?                    bytes / latency
energy_j              float?                    energy of one call, idle power included; empty: not measured
*status
*verdict
*ids
*config
*threads
low_ms                float?                    smallest round
high_ms               float?                    largest round
other_cores           float?                    CPU cores used by other processes during the measurement, median
*energy
*tf32

[power]
*op
gemm_m                int >= 1                  rows of the left matrix
gemm_k                int >= 1                  columns of the left matrix, which are summed over
gemm_n                int >= 1                  columns of the right matrix
dtype                 text                      element type; other types keep their published name
latency_ms            float?                    one call, back to back
flops                 float                     FLOPs from the shapes
power_w               float?                    mean of the sensor while the calls repeat; empty: not measured
limit_w               float?                    the card's power limit
window                long|short                long: the calls ran long enough for the sensor's mean to be their power
*status
*ids

[points]
label                 text                      the point's name for people
env                   text                      where it ran: a label of the environment, or the hardware id
arch                  text                      the model, or the operator family
*backend
batch_size            int                       samples; 0 where there is no batch
precision             fp64|fp32|tf32|bf16|fp16  element type, or the autocast type
elapsed_sec           float                     one step, pass, call, or all counted kernels
images_per_sec        float?                    batch_size / elapsed_sec; empty where there is no batch
ai                    float                     arithmetic intensity: flops / bytes
attained_gflops       float                     flops / elapsed_sec
peak_gflops           float                     the compute roof
peak_gbps             float                     the memory roof of `level`
bytes_source          compulsory|estimated|counted  compulsory: least traffic of each operator; estimated: the same
    with assumed types; counted: hardware counters
bound                 compute|L1|L2|L3|RAM|device|launch  what bounds the time: compute, a memory level, or launch
    overhead
kind                  step|network|operator|counted  what the point is
family                text                      workload, model or operator family: the colour of the point
calls                 int >= 1                  operators (or kernels) in elapsed_sec
occurrences           int >= 1                  how often the network holds this work
flops                 float                     FLOPs in elapsed_sec
bytes                 float                     bytes in elapsed_sec
level                 L1|L2|L3|RAM|device       the memory level whose roof the point is compared with
attainable_gflops     float                     the roof at this intensity
below_roof            float                     attainable / attained performance; below 1: the point lies above the
    roof
roof_dtype            fp64|fp32|tf32|bf16|fp16  element type of the compute roof
roof_source           measured|vendor           measured here or stated by the vendor
*verdict
*ids

[cells]
label                 text                      environment/model/batch/precision
*arch
*backend
*batch_size
*precision
repeat                int >= 1                  which of the cell's repeats
status                ok|failed                 outcome of the run
reason                text?                     why it failed or is not counted; empty otherwise
run_id                text?                     the run; empty when it failed
images_per_sec        float?                    throughput; empty when it failed
hardware_id           text                      which machine
at_utc                text                      when it ended, ISO 8601

[matrix]
env                   text                      where it ran: the environment of the matrix
workload_id           text                      what was trained on what
*arch
*backend
*batch_size
*precision
settings              text                      source of the images, and switches that differ from their defaults
n                     int >= 1                  usable runs
images_per_sec        float                     throughput, mean of the runs
std                   float?                    its standard deviation; empty for one run
median                float                     median throughput
low                   float                     the slowest run's
high                  float                     the fastest run's
cpu_percent           float                     CPU time of the process and its workers, % of one core, median
*ids

[complexity]
network               text                      workload id, model name, or module:Class
batch_size            int >= 1                  samples of the captured step
layer                 text?                     the module's name in the network; loss; empty: the network's own
    forward
op                    text                      ATen operator; unused: parameters that no operator reads
calls                 int                       how often a step runs it
params                int                       parameters that this row is the first to use
activation_bytes      int                       activations of the forward pass that the backward pass reads
flops_forward         float?                    all FLOPs of the forward pass; empty: not known
flops_backward        float?                    all FLOPs of the backward pass; empty: not known
bytes_forward         int                       compulsory bytes, read and written, of the forward pass
bytes_backward        int                       compulsory bytes, read and written, of the backward pass

[networks]
network               text                      workload id, model name, or module:Class
mode                  infer|train               one forward pass without gradients, or forward, loss and backward
batch_size            int >= 1                  samples
input_shape           text?                     one sample; empty: the network's usual one
dtype                 fp32|bf16|fp16|int8       element type, or the autocast type; int8: static quantisation
channels_last         bool                      whether 4-D tensors have channels innermost
*device
memory                default|kept              default allocator, or retained heap: freed memory stays in the process
*threads
latency_ms            float?                    median of the passes
latency_iqr_ms        float?                    interquartile range of the passes
n                     int                       number of measured passes
usual_share           float?                    share of passes during which the processor ran at its usual speed
rss_mb                float? signed             growth of the process's resident memory, network included, at its peak;
    10^6 bytes
tensors_mb            float?                    peak of tensors beyond weights and inputs in one pass, 10^6 bytes
*status
*verdict
*ids
energy_j              float? = nan since 2      energy of one pass, idle power included; empty: not measured
*energy
*tf32
compiled              bool = False since 4      whether torch.compile compiled the network
runtime               torch|onnxruntime|openvino = "torch" since 6  what ran it
instances             int >= 1 = 1 since 6      processes side by side, each on its own ``threads`` cores
prepare_s             float? = nan since 6      export, compilation, loading and first pass, all anew; 0: nothing to do

[scores]
kind                  operator|network|step|memory|power  what was predicted
family                text                      family and pass, or mode and batch size
*learner
mape                  float                     mean absolute error, %
mape_low              float                     its 95 % bootstrap interval, low end
mape_high             float                     high end
median                float                     median absolute error, %
p90                   float                     90th percentile, %
within_10             float                     share within 10 %, %
n                     int >= 1                  predictions
cover                 float?                    share inside the 90 % interval, %; empty: no intervals

[steps]
hardware_id           text                      which machine: a hash of its hardware
run_id                text                      the profiled run
workload              text                      its workload
arch                  text                      its model
*batch_size
split                 workload|arch             what was left out of training: the run's workload or its architecture
*learner
measured_ms           float                     median profiled training step
predicted_ms          float                     predicted step
*interval
loader_wait_ms        float?                    wait for the loader; empty: not predicted separately
h2d_ms                float?                    copy to the device; empty: not predicted separately
forward_ms            float?                    forward pass; empty: not predicted separately
backward_ms           float?                    backward pass; empty: not predicted separately
optimizer_ms          float?                    optimizer's step; empty: not predicted separately

[held_out]
device                text                      what it was measured on
what                  text                      what was predicted, and what was held out for it
kind                  text                      kind of network, or family of operators; empty: not told apart
mode                  infer|train|forward|backward  a forward pass, or a step of training; of operators which pass
condition             text                      how it ran: a condition of a card, the allocator of a CPU, an element
    type
group                 text                      what no fold splits, such as the family of the network; empty: not
    recorded
case                  text                      the network (and its image size), the run, or the configuration
batch_size            count?                    samples a batch; empty: no batch
fold                  count? >= 0               the fold in which it was held out; empty: each group was held out by
    itself
left_out              text                      what the model that predicted it had not seen
measured              single                    ms of a network, a step or an operator; MB of memory; a factor of gains
predicted             single                    in the same unit
low                   single?                   90 % interval, low end; empty: none
high                  single?                   90 % interval, high end; empty: none
out_of_range          bool                      whether the answer was flagged as outside of the training ranges
usable                bool                      whether repeats of the measurement agree; scores without and with the
    others are both given
networks              count? >= 0               networks of the device that corrected the model; empty: none was to
draw                  int                       which of several random choices of these networks
source                text                      who measured it
licence               text                      under which licence it was published

[schedule]
job_id                text                      the job
device                text                      where it ran
start_s               float                     seconds since the schedule's start
end_s                 float                     when it ended there
attempt               int >= 1                  from 1
status                done|failed|retried|moved|lost|cancelled  how the attempt ended; moved: restarted on another device;
    lost: not counted, because the run was killed or the disk was full

[whole_networks]
device                text                      the card, as in params/devices.yaml, or the CPU
network               text                      its name in timm
module                text                      the file of timm that defines it: its family
image_size            int >= 1                  height and width of an image
batch_size            int >= 1                  images a step
mode                  infer|train               a forward pass, or a step of training
precision             fp32|bf16|amp_fp16|amp_bf16  element type, or that of automatic mixed precision (amp)
layout                nchw|nhwc                 order of an image's axes in memory
compiled              bool                      whether torch.compile compiled it
torch                 text                      version of torch, such as 2.4.0
images_per_sec        float                     measured
latency_ms            float                     a step's time: batch size over images/s
parameters_m          float?                    millions of parameters; empty: not stated
gmacs                 float?                    10^9 multiply-adds an image; empty: not stated
mactivations          float?                    millions of activations an image; empty: not stated

[jobs]
job_id                text                      the job
workload_id           text = ""                 what is trained: id in params/workloads.yaml
notebook              text = ""                 path of a notebook to execute instead
parameters            text = ""                 parameters of the notebook, as a JSON object
steps                 count? = nan              training steps of the workload
arrival_s             float = 0.0               when it arrives
deadline_s            float = inf               when it should have ended; empty: no deadline
memory_mb             float = 0.0               memory that it needs on its device
cpu_cores             float = 0.0               host cores needed beside a GPU, or cores of the CPU slot
devices               int >= 1 = 1              devices of one type that it needs at once; memory and cores are of each

[devices]
device                text                      a device, or a group of equal ones
type                  text                      device type; devices of one type are alike
count                 int = 1                   devices in the group
memory_mb             float? = nan              memory of each; empty: not known
cpu_cores             float? = nan              cores of each CPU slot
idle_w                float? = nan              power when idle
busy_w                float? = nan              power at work
setup_s               float = 0.0               before each job
price_per_hour        float? = nan              price of an hour of use

[durations]
run                   text                      the folder of the run
job_id                text                      the job
notebook              text                      what was executed
device_type           text                      device type of the slot
seconds               float                     how long it took

[history]
step                  int                       training batch since the run began, from 0; of an epoch's values: its
    last
epoch                 int                       from 0
name                  text                      what is reported, as in TensorBoard: train/step_loss, val/acc@1, ...
value                 float? signed             its value; empty: undefined
wall_time_s           float                     when, in seconds since 1970
"""
_TYPE = re.compile(r"(?P<kind>[^ ?]+)(?P<empty>\??)( (?P<signed>signed)| >= (?P<least>-?\d+))?( = (?P<default>.+?))?"
                   r"( since (?P<since>\d+))?")
_LEAST = {"int": 0, "float": 0, "single": 0, "count": 1}


def _column(line: str) -> Column:
    name, form, meaning = re.split("  +", line, maxsplit=2)
    match = _TYPE.fullmatch(form)
    kind, of = (match["kind"], ()) if match["kind"] in DTYPES else ("text", tuple(match["kind"].split("|")))
    least = int(match["least"]) if match["least"] else None if match["signed"] else _LEAST.get(kind)
    return Column(name, kind, meaning, least, of, bool(match["empty"]), _default(kind, match["default"]),
                  int(match["since"] or 1))


def _default(kind: str, word: str | None) -> float | str | None:
    if word is None or kind == "text":
        return word and word.strip('"')
    return word == "True" if kind == "bool" else int(word) if word.isdigit() else float(word)


def _sections() -> dict[str, Columns]:
    """Return the columns of each section, a shared one under its name with a star."""
    sections: dict[str, Columns] = {}
    for section in _DEFINITIONS.split("\n\n"):
        title, *lines = section.replace("\n    ", " ").strip().splitlines()
        shared = {**{f"*{column.name}": (column,) for column in sections.get("*columns", ())}, **sections}
        sections[title.strip("[]")] = tuple(column for line in lines for column in shared.get(line) or (_column(line),))
    return sections


_SECTIONS = _sections()
PARAMETERS = _SECTIONS["*parameters"]  # every parameter of every operator family; a row fills those of its own family
NO_ENERGY = next(column.default for column in _SECTIONS["*energy"] if column.name == "energy_reason")
TABLES: dict[str, Columns] = {name: content for name, content in _SECTIONS.items() if not name.startswith("*")}
TABLES["energies"] = tuple(replace(column, since=1, default=None) for column in TABLES["energies"])  # has no older version


def columns(table: str) -> list[str]:
    """Return the column names of ``table`` in order; InputError lists the tables."""
    return [column.name for column in entry(TABLES, table, "table")]


def validate(frame, table: str, where: str):
    """Return ``frame`` with the types of ``table``.

    Raises InputError naming ``where``, the column and the first wrong values.
    """
    return validated(frame, TABLES[table], table, where)


def dictionary() -> str:
    """Return the data dictionary of every table as Markdown: what stands below the heading *Dictionary* of data/README.md."""
    parts = []
    for table, content in TABLES.items():
        rows = [f"| `{c.name}` | {c.kind} | {c.meaning}{' (' + choices(c.of) + ')' if c.of else ''} |" for c in content]
        parts.append(f"### `{table}`\n\n| column | type | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def with_dictionary(page: str) -> str:
    """Return a page (data/README.md) with the part from its first table on replaced by the dictionary."""
    return page.partition("### `")[0] + dictionary()
