// RUN: jaxpp-opt --pipeline mpmd --schedule gpipe --meshes 2 --print-pipeline | filecheck %s
// RUN: jaxpp-opt --pipeline mpmd --stop-after find-microbatch-loop --disable inline-calls --print-pipeline | filecheck %s --check-prefix=PART
// RUN: jaxpp-opt --pipeline mpmd --start-after plan-buffers --print-pipeline | filecheck %s --check-prefix=REST
// RUN: not jaxpp-opt --pipeline mpmd --stop-after outline-stage --print-pipeline 2>&1 | filecheck %s --check-prefix=ERROR

// CHECK: builtin.module(inline-calls,find-microbatch-loop{schedule=gpipe meshes=2},split-conditionals,
// PART: {{^}}builtin.module(find-microbatch-loop){{$}}
// REST: {{^}}builtin.module(verify-program){{$}}
// ERROR: jaxpp-opt: error: --stop-after: unknown pass 'outline-stage'; did you mean 'outline-stages'
