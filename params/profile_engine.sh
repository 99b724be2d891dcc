#!/bin/sh
# Build a TensorRT engine of an ONNX network and time its layers, where TensorRT is installed (on a board, or beside a GPU).
# usage: params/profile_engine.sh NETWORK.onnx [FOLDER] [trtexec option ...]     for example: ... resnet18.onnx raw_data --fp16
# Writes FOLDER/<network>/trt_profiling/trt_engine_info.json and trt_layer_latency.json, which
# `python -m lib layer-power dataset FOLDER` reads. trtexec gives one time per layer, without time stamps: no power goes with it.
# For power, add --saveEngine=NETWORK.engine here, and give that engine to params/profile_layers.py.
set -eu
TRTEXEC=${TRTEXEC:-trtexec}
if [ $# -lt 1 ] || [ ! -f "$1" ]; then
    echo "usage: params/profile_engine.sh NETWORK.onnx [FOLDER] [trtexec option ...]; there is no file '${1:-}'" >&2
    exit 2
fi
command -v "$TRTEXEC" >/dev/null || {
    echo "trtexec is not on the path: it comes with TensorRT, on a Jetson in /usr/src/tensorrt/bin; name it by TRTEXEC=..." >&2
    exit 2
}
network=$1
shift
folder=raw_data
case "${1:-}" in
    "" | -*) ;;
    *) folder=$1; shift ;;
esac
name=$(basename "$network" .onnx)
target=$folder/$name/trt_profiling
if [ -e "$target" ]; then
    echo "$target is there already: a recording is never overwritten; name another folder" >&2
    exit 2
fi
work=$folder/.new-$name
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
# The profiler runs apart from the benchmark, so that the benchmark's own numbers are not slowed by it.
"$TRTEXEC" --onnx="$network" --profilingVerbosity=detailed --separateProfileRun --noDataTransfers --useSpinWait \
    --exportLayerInfo="$work/trt_engine_info.json" --exportProfile="$work/trt_layer_latency.json" "$@"
for file in trt_engine_info.json trt_layer_latency.json; do
    if [ ! -s "$work/$file" ]; then
        echo "trtexec wrote no $file" >&2
        exit 1
    fi
done
mkdir -p "$folder/$name"
mv "$work" "$target"
trap - EXIT
echo "$target"
