#include "spire_module.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "arrays.hpp"
#include "spire.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace outrider {

namespace {

using Logits = Output<float, 2>;

void make_draft(SpireDraft* self, std::shared_ptr<Pool> pool, int num_heads, int num_kv_heads, int head_dim,
                float norm_eps, int window, int sink, bool sees_itself, int slots, int ring, MatrixPtr embedding,
                MatrixPtr head, Floats norm, Array<float, 2> mix, Array<float, 2> cosines, Array<float, 2> sines) {
    for (int size : {num_heads, num_kv_heads, head_dim, slots, ring})
        if (size < 1) refuse("sizes must be 1 or more");
    if (num_heads % num_kv_heads || head_dim % 2)
        refuse("heads must divide evenly among KV heads, and head_dim be even");
    if (window < 0 || sink < 0) refuse("window must be 0 (none) or more, and sink 0 or more");
    // A position that sees itself takes its place before it looks back.
    if (ring < window + int(sees_itself))
        refuse("a ring of " + text(ring) + " does not hold a window of " + text(window) +
               (sees_itself ? " and the position itself" : ""));
    if (sink > INT32_MAX - ring) refuse("sink and ring are too large");
    const int layers = size_of(mix, 0), positions = size_of(cosines, 0);
    if (layers < 1 || positions < 1) refuse("a draft needs at least one layer and one position");
    const int hidden = embedding->inputs();
    const SpireShape shape{embedding->outputs(),
                           head->outputs(),
                           hidden,
                           num_heads,
                           num_kv_heads,
                           head_dim,
                           layers,
                           norm_eps,
                           window,
                           sink,
                           sees_itself,
                           slots,
                           ring,
                           positions};
    need_shape("norm_D", norm, {size_t(hidden)});
    need_shape("mix_LS", mix, {size_t(layers), size_t(layers) + 1});
    new (self) SpireDraft(std::move(pool), shape, std::move(embedding), std::move(head), norm.data(), mix.data(),
                          rotations("cos_SP and sin_SP", cosines, sines, positions, head_dim));
}

void add_layer(SpireDraft& draft, Floats input_norm, MatrixPtr q, MatrixPtr kv, MatrixPtr out, Floats mlp_norm,
               MatrixPtr gate_up, MatrixPtr down) {
    const int width = draft.shape().hidden_size;
    SpireLayer layer;
    layer.input_norm = vector_of("input_norm_D", input_norm, width);
    layer.mlp_norm = vector_of("mlp_norm_D", mlp_norm, width);
    layer.q = std::move(q);
    layer.kv = std::move(kv);
    layer.out = std::move(out);
    layer.gate_up = std::move(gate_up);
    layer.down = std::move(down);
    draft.add_layer(std::move(layer));
}

void remember(SpireDraft& draft, Ints slots, Ints positions, Array<float, 3> states) {
    const size_t rows = slots.shape(0);
    need_shape("positions_N", positions, {rows});
    need_shape("states_LND", states, {size_t(draft.shape().num_layers), rows, size_t(draft.shape().hidden_size)});
    const std::vector<int> slot_list = copied(slots), position_list = copied(positions);
    const SpireStates given{size_of(slots, 0), slot_list.data(), position_list.data(), states.data()};
    nb::gil_scoped_release release;
    draft.remember(given);
}

void step(SpireDraft& draft, Ints tokens, Ints slots, Ints positions, Logits logits) {
    const size_t rows = tokens.shape(0);
    need_shape("slots_N", slots, {rows});
    need_shape("positions_N", positions, {rows});
    need_shape("logits_NV", logits, {rows, size_t(draft.shape().draft_vocab_size)});
    const std::vector<int> token_list = copied(tokens), slot_list = copied(slots), position_list = copied(positions);
    const SpireBatch batch{size_of(tokens, 0), token_list.data(), slot_list.data(), position_list.data(),
                           logits.data()};
    nb::gil_scoped_release release;
    draft.step(batch);
}

}  // namespace

void bind_spire(nb::module_& m) {
    nb::class_<SpireDraft>(m, "SpireDraft")
        .def("__init__", &make_draft, "pool"_a, nb::kw_only(), "num_heads"_a, "num_kv_heads"_a, "head_dim"_a,
             "norm_eps"_a, "window"_a, "sink"_a, "sees_itself"_a, "slots"_a, "ring"_a, "embedding"_a, "head"_a,
             "norm_D"_a.noconvert(), "mix_LS"_a.noconvert(), "cos_SP"_a.noconvert(), "sin_SP"_a.noconvert())
        .def("add_layer", &add_layer, nb::kw_only(), "input_norm_D"_a.noconvert(), "q"_a, "kv"_a, "out"_a,
             "mlp_norm_D"_a.noconvert(), "gate_up"_a, "down"_a)
        .def_prop_ro("nbytes", &SpireDraft::nbytes)
        .def("open", &SpireDraft::open, "slot"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("close", &SpireDraft::close, "slot"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("remember", &remember, "slots_N"_a.noconvert(), "positions_N"_a.noconvert(), "states_LND"_a.noconvert())
        .def("step", &step, "tokens_N"_a.noconvert(), "slots_N"_a.noconvert(), "positions_N"_a.noconvert(),
             "logits_NV"_a.noconvert());
}

}  // namespace outrider
