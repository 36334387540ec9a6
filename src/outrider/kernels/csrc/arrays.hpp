// Arrays as Python gives them, and the checks of their shapes.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checks.hpp"
#include "decoder.hpp"

namespace outrider {

template <class T, int Dimensions>
using Array = nanobind::ndarray<const T, nanobind::ndim<Dimensions>, nanobind::c_contig, nanobind::device::cpu>;
template <class T, int Dimensions>
using Output = nanobind::ndarray<T, nanobind::ndim<Dimensions>, nanobind::c_contig, nanobind::device::cpu>;
using Floats = Array<float, 1>;
using Ints = Array<int32_t, 1>;

// An array's size along one dimension, which must fit the int that kernels count with.
template <class A>
int size_of(const A& array, int dimension) {
    if (array.shape(dimension) > size_t(INT32_MAX)) refuse("an array is too large");
    return int(array.shape(dimension));
}

template <class A>
void need_shape(const char* name, const A& array, std::vector<size_t> wanted) {
    for (size_t i = 0; i < wanted.size(); ++i) {
        if (array.shape(i) != wanted[i])
            refuse(std::string(name) + " has " + std::to_string(array.shape(i)) + " entries in dimension " +
                   std::to_string(i) + ", needed are " + std::to_string(wanted[i]));
    }
}

// A copy: what has been checked must not change while threads use it.
inline std::vector<int> copied(const Ints& ints) { return {ints.data(), ints.data() + ints.shape(0)}; }

inline PaddedVector vector_of(const char* name, const Floats& values, int size) {
    need_shape(name, values, {size_t(size)});
    return PaddedVector(values.data(), size);
}

inline Rotations rotations(const char* name, Array<float, 2> cosines, Array<float, 2> sines, int positions,
                           int head_dim) {
    const std::vector<size_t> wanted{size_t(positions), size_t(head_dim / 2)};
    need_shape(name, cosines, wanted);
    need_shape(name, sines, wanted);
    const size_t size = wanted[0] * wanted[1];
    return {{cosines.data(), cosines.data() + size}, {sines.data(), sines.data() + size}};
}

}  // namespace outrider
