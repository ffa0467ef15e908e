// Softmax and the losses. Batches of a few hundred rows of ten values: the definitions in double are exact, cost a
// thousandth of a step, and stand in one place, so the CPU backend uses them.
#include "core/kernels.h"

namespace rg::cpu {

void softmax(const Call& call) { ref::softmax(call); }
void softmax_grad(const Call& call) { ref::softmax_grad(call); }
void cross_entropy(const Call& call) { ref::cross_entropy(call); }
void cross_entropy_grad(const Call& call) { ref::cross_entropy_grad(call); }
void mse_loss(const Call& call) { ref::mse_loss(call); }
void mse_loss_grad(const Call& call) { ref::mse_loss_grad(call); }

} // namespace rg::cpu
