//! The command line options of the binary.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::process::{Command, Output};

fn karpenter_kwok(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_karpenter-kwok"))
        .args(arguments)
        .env_clear()
        .output()
        .unwrap()
}

#[test]
fn help_lists_the_kwok_options_and_those_of_all_providers() {
    let help = String::from_utf8(karpenter_kwok(&["--help"]).stdout).unwrap();
    for word in [
        "\nProcess:\n",
        "\nReplicas:\n",
        "\nScheduling:\n",
        "\nKWOK:\n",
        "--instance-types-file-path",
        "[env: INSTANCE_TYPES_FILE_PATH",
    ] {
        assert!(help.contains(word), "{word} in {help}");
    }
    assert!(!help.contains("AWS"), "{help}");
    let version = String::from_utf8(karpenter_kwok(&["--version"]).stdout).unwrap();
    let own = concat!("karpenter-kwok ", env!("CARGO_PKG_VERSION"));
    assert_eq!(version.trim(), own);
}

#[test]
fn an_invalid_instance_types_file_ends_the_process_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.json");
    let types = r#"[{"name": "tiny", "architecture": "arm64", "operatingSystems": ["linux"], "resources": {"cpu": "many"}, "offerings": []}]"#;
    std::fs::write(&broken, types).unwrap();
    let missing = folder.path().join("missing.json");
    for (file, word) in [
        (&broken, "instance type `tiny`"),
        (&missing, "missing.json"),
    ] {
        let flag = format!("--instance-types-file-path={}", file.display());
        let ended = karpenter_kwok(&[&flag]);
        assert!(!ended.status.success());
        let output = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
        let last = output.lines().last().unwrap();
        assert!(
            last.starts_with('{') && last.contains(r#""level":"ERROR""#),
            "{output}"
        );
        assert!(last.contains(word), "{output}");
    }
}
