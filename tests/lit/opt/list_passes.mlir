// RUN: jaxpp-opt --list-passes | filecheck %s
// RUN: jaxpp-opt --pass-doc find-microbatch-loop | filecheck %s --check-prefix=DOC

// CHECK-LABEL: inline-calls
// CHECK-NEXT: {{.+}}
// CHECK-LABEL: find-microbatch-loop
// CHECK-NEXT: {{.+}}
// CHECK-NEXT: {schedule=<str>}  default ""
// CHECK-NEXT: {meshes=<int>}  default 0
// CHECK-LABEL: --pipeline mpmd

// DOC: find-microbatch-loop
// DOC: Preconditions: `inline-calls` ran
