//! The binary `glint`. What it does is in the library of this crate.

fn main() -> std::process::ExitCode {
    glint::main()
}
