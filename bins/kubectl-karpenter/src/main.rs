//! `kubectl karpenter`: see `--help`.

fn main() -> std::process::ExitCode {
    kubectl_karpenter::main(std::env::args_os())
}
