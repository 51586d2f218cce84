// RUN: not jaxpp-opt %s -p inlne-calls 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not jaxpp-opt %s -p find-microbatch-loop{meshs=4} 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not jaxpp-opt %s -p find-microbatch-loop{meshes=four} 2>&1 | filecheck %s --check-prefix=VALUE
// RUN: not jaxpp-opt %s --pipeline mpmd -p inline-calls 2>&1 | filecheck %s --check-prefix=BOTH

// PASS: jaxpp-opt: error: unknown pass 'inlne-calls'; did you mean 'inline-calls'?
// OPTION: jaxpp-opt: error: pass 'find-microbatch-loop' has no option 'meshs'; it has: schedule=<str>, meshes=<int>, operations=<str>
// VALUE: jaxpp-opt: error: pass 'find-microbatch-loop': option 'meshes' takes an integer, found 'four'
// BOTH: jaxpp-opt: error: -p and --pipeline exclude each other
func.func @main() {
  return
}
