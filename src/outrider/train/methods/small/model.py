"""A Llama model as a torch module, tensors named as in its Hugging Face checkpoint; the head has frequent tokens only.

Shapes: B texts, S positions, H query heads, G key heads, E head width, D hidden, V draft vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from outrider.draft.spire.rotation import turn
from outrider.models.decoder_config import RopeConfig
from outrider.models.rope import rotation_table
from outrider.train.methods.small.config import SmallConfig

Rotations = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines ``(S, E / 2)``."""

_SPREAD = 0.02


class Attention(nn.Module):
    """Causal attention over the text so far."""

    def __init__(self, c: SmallConfig) -> None:
        super().__init__()
        self._config = c
        query, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(query, c.hidden_size, bias=False)

    def forward(self, x_BSD: torch.Tensor, rotations: Rotations) -> torch.Tensor:
        heads = (*x_BSD.shape[:2], -1, self._config.head_dim)
        query = turn(self.q_proj(x_BSD).view(heads), *rotations).transpose(1, 2)
        key = turn(self.k_proj(x_BSD).view(heads), *rotations).transpose(1, 2)
        value = self.v_proj(x_BSD).view(heads).transpose(1, 2)
        group = self._config.num_heads // self._config.num_kv_heads
        # Repeated by hand: with fewer heads torch leaves its fast path on CPU.
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        # Texts are padded behind, so no mask but the causal one is needed.
        attended_BHSE = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: torch.Tensor = self.o_proj(attended_BHSE.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """``down(silu(gate) * up)``."""

    def __init__(self, c: SmallConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x_BSD)) * self.up_proj(x_BSD))
        return out


class Layer(nn.Module):
    """One block."""

    def __init__(self, c: SmallConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c.hidden_size, c.norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c.hidden_size, c.norm_eps)
        self.mlp = Mlp(c)

    def forward(self, x_BSD: torch.Tensor, rotations: Rotations) -> torch.Tensor:
        x_BSD = x_BSD + self.self_attn(self.input_layernorm(x_BSD), rotations)
        out: torch.Tensor = x_BSD + self.mlp(self.post_attention_layernorm(x_BSD))
        return out


class Body(nn.Module):
    """Everything but the head."""

    cos_PE: torch.Tensor
    sin_PE: torch.Tensor

    def __init__(self, c: SmallConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_layers))
        self.norm = nn.RMSNorm(c.hidden_size, c.norm_eps)
        turns_PE = rotation_table(RopeConfig(c.rope_theta), c.head_dim, c.max_positions)
        self.register_buffer("cos_PE", turns_PE.real.contiguous(), persistent=False)
        self.register_buffer("sin_PE", turns_PE.imag.contiguous(), persistent=False)

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        length = tokens_BS.shape[1]
        rotations = self.cos_PE[:length], self.sin_PE[:length]
        x_BSD = self.embed_tokens(tokens_BS)
        for layer in self.layers:
            x_BSD = layer(x_BSD, rotations)
        out: torch.Tensor = self.norm(x_BSD)
        return out


class SmallModule(nn.Module):
    """A draft in training: texts ``(B, S)`` to normed states ``(B, S, D)``; ``lm_head`` makes logits of them."""

    def __init__(self, config: SmallConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self._start()

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        states_BSD: torch.Tensor = self.model(tokens_BS)
        return states_BSD

    @torch.no_grad()
    def _start(self) -> None:
        """GPT-2's start: small, and smaller where a layer joins the residual stream, which all of them add to."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                joins = name.endswith(("o_proj.weight", "down_proj.weight"))
                parameter.normal_(0.0, _SPREAD / (2 * self.config.num_layers) ** 0.5 if joins else _SPREAD)
