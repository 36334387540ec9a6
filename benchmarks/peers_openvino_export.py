"""Export a Transformers folder for OpenVINO GenAI: weights as they are (bf16), and as int8.

    python peers_openvino_export.py TRANSFORMERS FOLDER     # its own environment: optimum-intel, openvino-genai

Writes FOLDER/openvino-bf16 and FOLDER/openvino-int8, and checks their sizes: the exporter has written full precision
when asked for int8, so the weights are compressed here. OpenVINO computes in bf16 where the processor can.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

BYTES_PER_WEIGHT = {"bf16": 2.0, "int8": 1.0}
_TOLERANCE = 0.1


def export(source: Path, folder: Path) -> None:
    """Write both models with their tokenizers. Raises ``ValueError`` for a file whose size is not its precision's."""
    openvino: Any = importlib.import_module("openvino")
    nncf: Any = importlib.import_module("nncf")
    optimum: Any = importlib.import_module("optimum.exporters.openvino")
    full, small = folder / "openvino-bf16", folder / "openvino-int8"
    for target in (full, small):
        shutil.rmtree(target, ignore_errors=True)
    optimum.main_export(
        str(source), output=full, task="text-generation-with-past", library_name="transformers", convert_tokenizer=False
    )
    _write_tokenizer(source, full)
    shutil.copytree(full, small, ignore=shutil.ignore_patterns("openvino_model.*"))
    model = openvino.Core().read_model(full / "openvino_model.xml")
    model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    openvino.save_model(model, small / "openvino_model.xml", compress_to_fp16=False)
    stored = (source / "model.safetensors").stat().st_size
    for precision, target in (("bf16", full), ("int8", small)):
        check_size(target / "openvino_model.bin", precision, stored)


def check_size(path: Path, precision: str, stored: int) -> None:
    """Compare a file with the checkpoint's ``stored`` bytes of bf16. Raises ``ValueError``."""
    expected = stored / 2 * BYTES_PER_WEIGHT[precision]
    size = path.stat().st_size
    if abs(size / expected - 1) > _TOLERANCE:
        raise ValueError(f"{path} has {size / 1e6:.0f} MB; weights in {precision} are about {expected / 1e6:.0f} MB")


def _write_tokenizer(source: Path, target: Path) -> None:
    # The pipeline wants these files even for prompts of token ids.
    openvino: Any = importlib.import_module("openvino")
    transformers: Any = importlib.import_module("transformers")
    convert: Any = importlib.import_module("openvino_tokenizers").convert_tokenizer
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    for name, model in zip(("tokenizer", "detokenizer"), convert(tokenizer, with_detokenizer=True), strict=True):
        openvino.save_model(model, target / f"openvino_{name}.xml")


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
