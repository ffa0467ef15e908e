// The context of each thread.
#include "core/context.h"

namespace rg {

namespace {

thread_local const Context* current = nullptr;

} // namespace

const Context& context() {
    static const Context kDefault;
    return current ? *current : kDefault;
}

ContextScope::ContextScope(const Context& context) : before_(current) { current = &context; }
ContextScope::~ContextScope() { current = before_; }

} // namespace rg
