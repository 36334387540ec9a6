"""A tiny random Llama with a tokenizer of letters, as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnopqrstuvwxyz ."
END = "<end>"
VOCAB = 2 + len(LETTERS)
_CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}.{% endif %}"


def write_target(folder: Path, layers: int = 3) -> Path:
    """Four heads in two groups, an untied head; token 0 ends a text."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=False,
        eos_token_id=0,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    vocab = {text: i for i, text in enumerate([END, "<unk>", *LETTERS])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, unk_token="<unk>")
    tokenizer.chat_template = _CHAT
    tokenizer.save_pretrained(folder)
    return folder
