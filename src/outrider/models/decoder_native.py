"""A decoder's forward pass in the native kernels: one call a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from outrider.config import Quantization
from outrider.errors import ConfigError
from outrider.models.decoder_config import DecoderConfig, RopeConfig
from outrider.models.decoder_weights import Stored, WeightReader
from outrider.models.kv import check_kv_memory
from outrider.models.rope import rotation_table
from outrider.models.weights_native import NativeBuilder, dtype_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from outrider.kernels import Native
    from outrider.kernels._native import Decoder, Pool
    from outrider.models.tiles import Span
    from outrider.models.weights_native import NativeWeights

_BLOCK = 128


class NativeForward:
    """Logits and hidden states are float32; keys and values have the model's dtype."""

    deterministic = True

    def __init__(
        self,
        config: DecoderConfig,
        weights: NativeWeights,
        native: Native,
        pool: Pool,
        *,
        dtype: torch.dtype,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self.config, self.weights, self.native, self.pool = config, weights, native, pool
        # Positions come in whole blocks.
        heads = (config.num_kv_heads, -(-max_model_len // _BLOCK) * _BLOCK, config.head_dim)
        check_kv_memory((config.num_layers, 2, max_num_seqs, *heads), dtype)
        self._decoder = native.module.Decoder(
            pool,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            num_layers=config.num_layers,
            norm_eps=config.norm_eps,
            attention_scale=config.attention_scale,
            window=config.window or 0,
            # The scale is rounded like the weights beside it, as in Transformers.
            embedding_scale=float(torch.tensor(config.embedding_scale, dtype=dtype)),
            slots=max_num_seqs,
            positions=max_model_len,
            kv_dtype=dtype_name(dtype),
            embedding=weights.embedding,
            head=weights.head,
            norm_D=weights.norm,
            **_rotations(config, max_model_len),
        )
        _add_layers(self._decoder, config, weights)

    @property
    def weight_bytes(self) -> int:
        """What a step of one row reads: every matrix and norm once; of an embedding that is no head, single rows."""
        layers = (part for layer in self.weights.layers for part in vars(layer).values())
        return sum(part.nbytes for part in (self.weights.head, self.weights.norm, *layers) if part is not None)

    @classmethod
    @torch.inference_mode()
    def load(
        cls,
        config: DecoderConfig,
        tensors: Iterable[tuple[str, Stored]],
        native: Native,
        *,
        dtype: torch.dtype,
        quantization: Quantization | None,
        max_num_seqs: int,
        max_model_len: int,
        name: str,
    ) -> NativeForward:
        """Pack weights. Raises ModelError when they do not fit the configuration, ConfigError for sizes that cannot be
        had."""
        sizes = {"max_num_seqs": max_num_seqs, "max_model_len": max_model_len}
        try:
            builder = NativeBuilder(config, native, dtype, quantization)
            weights = WeightReader(config, builder).read(tensors, name)
            return cls(config, weights, native, builder.pool, dtype=dtype, **sizes)
        except MemoryError as error:
            raise ConfigError(
                f"{name}: the system has no memory for its weights and for keys and values of max_num_seqs="
                f"{max_num_seqs} slots of max_model_len={max_model_len} tokens; reduce them, or quantize the weights"
            ) from error

    def open(self, slot: int, used: int) -> None:
        """Take the slot; ``close`` has erased it."""
        del used
        try:
            self._decoder.open(slot)
        except ValueError:
            # An interrupt came between the runner's books and ours.
            self._decoder.close(slot)
            self._decoder.open(slot)

    def close(self, slot: int) -> None:
        """Free and erase the slot."""
        self._decoder.close(slot)

    def run(
        self,
        tokens: Sequence[int],
        spans: Sequence[Span],
        wanted: Sequence[int],
        hidden: bool,
        layers: Sequence[int] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Logits, hidden states and states in float32 (see ``Forward``)."""
        c, rows = self.config, len(wanted)
        slots_F, starts_F, counts_F = np.array([(s.slot, s.start, s.count) for s in spans], np.int32).T.copy()
        logits_MV = np.empty((rows, c.vocab_size), np.float32)
        hidden_MD = np.empty((rows, c.hidden_size), np.float32) if hidden else None
        states_LND = np.empty((len(layers), len(tokens), c.hidden_size), np.float32) if layers else None
        self._decoder.step(
            np.array(tokens, np.int32),
            slots_F,
            starts_F,
            counts_F,
            np.array(wanted, np.int32),
            logits_MV,
            hidden_MD=hidden_MD,
            layers_L=np.array(layers, np.int32) if layers else None,
            states_LND=states_LND,
        )
        return torch.from_numpy(logits_MV), _tensor(hidden_MD), _tensor(states_LND)


def _tensor(values: NDArray[np.float32] | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values)


def _rotations(config: DecoderConfig, positions: int) -> dict[str, NDArray[np.float32]]:
    def table(rope: RopeConfig) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        turns_SP = rotation_table(rope, config.head_dim, positions)
        return turns_SP.real.contiguous().numpy(), turns_SP.imag.contiguous().numpy()

    cos_SP, sin_SP = table(config.rope)
    local_cos_SP, local_sin_SP = (cos_SP, sin_SP) if config.rope_local == config.rope else table(config.rope_local)
    return {"cos_SP": cos_SP, "sin_SP": sin_SP, "local_cos_SP": local_cos_SP, "local_sin_SP": local_sin_SP}


def _add_layers(decoder: Decoder, config: DecoderConfig, weights: NativeWeights) -> None:
    for local, layer in zip(config.local, weights.layers, strict=True):
        decoder.add_layer(
            local=local,
            input_norm_D=layer.input_norm,
            qkv=layer.qkv,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            out=layer.out,
            post_attention_norm_D=layer.post_attention_norm,
            mlp_norm_D=layer.mlp_norm,
            gate_up=layer.gate_up,
            down=layer.down,
            post_mlp_norm_D=layer.post_mlp_norm,
        )
