"""Names of NVIDIA's JaxPP that only scripts written for it need (docs/jaxpp-compatibility.md)."""
