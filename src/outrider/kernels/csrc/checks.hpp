// Refusals of what a caller gave, with the numbers in the message.
#pragma once
#include <stdexcept>
#include <string>

#include "matrix.hpp"

namespace outrider {

inline std::string text(int value) { return std::to_string(value); }

[[noreturn]] inline void refuse(const std::string& reason) { throw std::invalid_argument(reason); }

inline void check_range(const char* what, int value, int limit) {
    if (value < 0 || value >= limit) refuse(std::string(what) + " " + text(value) + " is not in 0.." + text(limit - 1));
}

inline void check_layers(const char* owner, size_t layers, int wanted) {
    if (int(layers) != wanted)
        refuse(std::string(owner) + " has " + text(int(layers)) + " of its " + text(wanted) + " layers");
}

inline void check_sizes(const char* name, const Matrix& matrix, int outputs, int inputs, bool gated) {
    const auto words = [](bool with_gate, int rows, int columns) {
        return std::string(with_gate ? "gated " : "") + text(rows) + " x " + text(columns);
    };
    const bool has_gate = matrix.packed().gate != Gate::none;
    if (matrix.outputs() != outputs || matrix.inputs() != inputs || has_gate != gated)
        refuse(std::string(name) + " is " + words(has_gate, matrix.outputs(), matrix.inputs()) + ", needed is " +
               words(gated, outputs, inputs));
}

// Of a matrix that is multiplied with, and not only looked up.
inline void check_matrix(const char* name, const Matrix& matrix, const std::shared_ptr<Pool>& pool, int outputs,
                         int inputs, bool gated) {
    if (matrix.pool() != pool) refuse(std::string(name) + " was packed for another pool");
    check_sizes(name, matrix, outputs, inputs, gated);
}

}  // namespace outrider
