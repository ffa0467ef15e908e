// The functions that networks are written with. Each runs a row of the op table and records on the active tape.
//
// Shapes: images [n h w c], filters [k r s c], vectors [n c], labels i32 [n]. Activations are f32 or bf16. With bf16,
// what is computed from them is bf16 too, but parameters, statistics, sums and losses stay f32, and so does the
// arithmetic (filters are rounded to bf16 as operands). The reference backend also takes f64. Errors name the op, what
// it expected and what it got.
//
// Each header also has the structs of its ops: attributes, and the names of inputs and outputs. A program that only
// calls the functions does not need them.
#pragma once

#include "core/ops/augment.h"
#include "core/ops/conv.h"
#include "core/ops/elements.h"
#include "core/ops/loss.h"
#include "core/ops/norm.h"
#include "core/ops/optimizer.h"
#include "core/ops/pool.h"
