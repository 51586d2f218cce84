// RUN: not jaxpp-reduce %s 2>&1 | filecheck %s --check-prefix=NO-TEST
// RUN: not jaxpp-reduce %s -p inline-calls 2>&1 | filecheck %s --check-prefix=NO-TEXT
// RUN: not jaxpp-reduce %s -p inlne-calls --expect error 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not jaxpp-reduce %s --test true -o %s 2>&1 | filecheck %s --check-prefix=INPUT
// RUN: not jaxpp-reduce %s --test "echo fine && false" 2>&1 | filecheck %s --check-prefix=BORING
// RUN: not jaxpp-reduce %s -p inline-calls --expect crash 2>&1 | filecheck %s --check-prefix=NO-ERROR

// NO-TEST: jaxpp-reduce: error: give either --test COMMAND, or passes with -p or --pipeline
// NO-TEXT: jaxpp-reduce: error: passes need --expect TEXT: a part of the message to keep
// PASS: jaxpp-reduce: error: unknown pass 'inlne-calls'; did you mean 'inline-calls'?
// INPUT: usage_invalid.mlir is the input; --in-place overwrites it
// BORING: usage_invalid.mlir: error: not interesting: expected exit code 0 of the test, found fine
// NO-ERROR: usage_invalid.mlir: error: not interesting: expected 'crash' of the test, found no output
func.func @main() {
  return
}
