// Declares the functions that networks are written with. They run ops, which the active tape records.
//
// Shapes: images [n h w c], filters [k r s c], vectors [n c], labels i32 [n], for n samples of h x w pixels and c
// channels, and k filters of r x s pixels. Activations are f32 or bf16. Activations that are computed from bf16
// activations are bf16 too; cast() converts them. Parameters, statistics, sums and losses are f32. A convolution of
// bf16 images rounds its filters to bf16, but adds in f32. The reference backend computes in double and also takes f64.
// Errors name the op, the expected value and the actual one.
//
// Each header also defines the structs of its ops, which hold the attributes and the names of inputs and outputs. A
// program that only calls the functions does not need these structs.
#pragma once

#include "core/ops/augment.h"
#include "core/ops/conv.h"
#include "core/ops/elements.h"
#include "core/ops/loss.h"
#include "core/ops/norm.h"
#include "core/ops/optimizer.h"
#include "core/ops/pool.h"
