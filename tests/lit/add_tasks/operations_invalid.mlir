// RUN: not jaxpp-opt %s -p "find-microbatch-loop{operations=log:weights}" 2>&1 | filecheck %s

// CHECK: pass 'find-microbatch-loop': operations: expected KIND or KIND:residuals, found 'log:weights'
module {}
