//! Making an environment: a venv at its final place, since a venv can't be moved.

use super::super::progress::Progress;
use crate::settings;
use ringfence_core::{Code, Failure};
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the interpreter is asked when all is installed.
const DESCRIBE: &str = "\
import json, platform, sysconfig
from importlib.metadata import distributions
names = sorted({d.metadata['Name'] + '==' + d.version for d in distributions()}, key=str.lower)
print(json.dumps([platform.python_version(), sysconfig.get_paths()['purelib'], names]))
";

/// Says where matplotlib finds the fonts that were looked up when the environment was made.
/// Matplotlib wants its folder writable, and a sandbox sees the environment read-only, so each
/// sandbox gets a folder of its own with a link to the list.
const FONTS: &str = "\
# Made by `ringfence env add`: spares each sandbox the search for fonts at its first plot.
import os


def _link():
    if os.environ.get('MPLCONFIGDIR'):
        return
    lists = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'ringfence_fonts')
    folder = '/tmp/.matplotlib-%d' % os.getuid()
    try:
        os.mkdir(folder, 0o700)
        for name in os.listdir(lists):
            os.symlink(os.path.join(lists, name), os.path.join(folder, name))
    except FileExistsError:
        # Outside of a sandbox another user may have put it there.
        if os.lstat(folder).st_uid != os.getuid():
            return
    except OSError:
        return
    os.environ['MPLCONFIGDIR'] = folder


_link()
";

/// Makes the environment and answers with the version of Python and what was installed.
pub(super) fn build(
    folder: &Path,
    python: &Path,
    packages: &[String],
) -> Result<(String, Vec<String>), Failure> {
    let progress = Progress::new();
    let inside = folder.join("bin/python3");
    match settings::program("uv") {
        Some(uv) => with_uv(&progress, &uv, folder, python, packages)?,
        None => with_pip(&progress, folder, python, packages)?,
    }
    let (version, site, installed) = describe(&inside)?;
    if site.join("matplotlib").is_dir() {
        progress.step("looking for fonts");
        keep_fonts(&inside, &site)?;
    }
    progress.step("compiling");
    // Sandboxes can't write there, so what is not compiled now is compiled in each of them anew.
    // Packages may hold files that are no valid code, such as templates: those are not compiled.
    let mut compile = Command::new(&inside);
    compile
        .args(["-m", "compileall", "-q", "-j", "0"])
        .arg(&site);
    let _ = run(&progress, "compile the packages", &mut compile);
    open_to_all(folder)
        .map_err(|e| Failure::io(format!("cannot open {} to all", folder.display()), &e))?;
    Ok((version, installed))
}

fn with_uv(
    progress: &Progress,
    uv: &Path,
    folder: &Path,
    python: &Path,
    packages: &[String],
) -> Result<(), Failure> {
    progress.step("making the environment with uv");
    let mut venv = Command::new(uv);
    venv.args(["venv", "--no-project", "--python"])
        .arg(python)
        .arg(folder);
    run(progress, "make the environment", &mut venv)?;
    progress.step(&format!("installing {} packages with uv", packages.len()));
    let mut install = Command::new(uv);
    // Copies: links into uv's cache would change there what we open to all here.
    install
        .args(["pip", "install", "--link-mode", "copy", "--python"])
        .arg(folder.join("bin/python3"))
        .args(packages);
    run(progress, "install the packages", &mut install).map_err(not_installed)
}

/// The venv has no pip of its own where the interpreter's can serve it: sandboxes have no use for
/// one, and Debian's interpreter can't make one unless a further package is there.
fn with_pip(
    progress: &Progress,
    folder: &Path,
    python: &Path,
    packages: &[String],
) -> Result<(), Failure> {
    progress.step("making the environment with venv");
    let mut venv = Command::new(python);
    venv.args(["-m", "venv", "--without-pip"]).arg(folder);
    run(progress, "make the environment", &mut venv).map_err(|failure| {
        failure.hint("install the package python3-venv, or uv (https://docs.astral.sh/uv)")
    })?;
    let inside = folder.join("bin/python3");
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "--python"]).arg(&inside);
    if !succeeds(
        Command::new(python)
            .args(["-m", "pip", "--python"])
            .arg(&inside)
            .arg("--version"),
    ) {
        // Absent, or older than its option --python.
        progress.step("making the environment's own pip");
        let mut ensure = Command::new(&inside);
        ensure.args(["-m", "ensurepip", "--default-pip"]);
        run(progress, "make the environment's pip", &mut ensure).map_err(|failure| {
            Failure::new(
                Code::Missing,
                format!("{} has neither pip nor ensurepip", python.display()),
            )
            .hint(
                "install python3-pip or python3-venv (`apt install python3-venv`), \
                 or uv (https://docs.astral.sh/uv)",
            )
            .detail(failure.detail.unwrap_or(failure.message))
        })?;
        pip = Command::new(&inside);
        pip.args(["-m", "pip"]);
    }
    progress.step(&format!("installing {} packages with pip", packages.len()));
    pip.args(["install", "--no-compile", "--no-input"])
        .arg("--disable-pip-version-check")
        .args(packages)
        .env("PIP_ROOT_USER_ACTION", "ignore");
    run(progress, "install the packages", &mut pip).map_err(not_installed)
}

fn not_installed(failure: Failure) -> Failure {
    failure.hint("see that the names are right and that the package index can be reached")
}

fn succeeds(command: &mut Command) -> bool {
    let silent = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

/// Runs a step; the last lines of what it says are the detail of its failure.
fn run(progress: &Progress, what: &str, command: &mut Command) -> Result<(), Failure> {
    const KEPT: usize = 12;
    let failed = |e: &io::Error| {
        let program = command.get_program().display();
        Failure::io(format!("cannot {what}: cannot run {program}"), e)
    };
    // One pipe for both streams, so that they keep their order and neither fills up.
    let (reader, writer) = io::pipe().map_err(|e| failed(&e))?;
    let copy = writer.try_clone().map_err(|e| failed(&e))?;
    command.stdin(Stdio::null()).stdout(copy).stderr(writer);
    // The interpreter that is meant is the one that was named.
    command.env_remove("PYTHONHOME").env_remove("PYTHONPATH");
    let spawned = command.spawn();
    // The command holds writing ends, without whose closing the pipe never ends.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = spawned.map_err(|e| Failure::io(format!("cannot {what}"), &e))?;
    let mut last = std::collections::VecDeque::new();
    for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        progress.detail(&line);
        last.push_back(line);
        if last.len() > KEPT {
            last.pop_front();
        }
    }
    let status = child
        .wait()
        .map_err(|e| Failure::io(format!("cannot {what}"), &e))?;
    if status.success() {
        return Ok(());
    }
    let said = Vec::from(last).join("\n");
    Err(Failure::new(Code::Unavailable, format!("cannot {what}")).detail(said))
}

/// The version of Python, the folder of the packages, and what is in it.
fn describe(inside: &Path) -> Result<(String, PathBuf, Vec<String>), Failure> {
    let what = "cannot run the environment's interpreter";
    let output = Command::new(inside)
        .args(["-I", "-c", DESCRIBE])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Failure::io(what, &e))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        Failure::new(Code::Missing, what)
            .hint("Python 3.8 or later is needed")
            .detail(String::from_utf8_lossy(&output.stderr))
    })
}

/// Lets matplotlib look for fonts once, and keeps what it found beside the packages.
fn keep_fonts(inside: &Path, site: &Path) -> Result<(), Failure> {
    let fonts = site.join("ringfence_fonts");
    let made = fs::create_dir(&fonts);
    made.map_err(|e| Failure::io(format!("cannot make {}", fonts.display()), &e))?;
    let looked = succeeds(
        Command::new(inside)
            .args(["-c", "import matplotlib.font_manager"])
            .env("MPLBACKEND", "Agg")
            .env("MPLCONFIGDIR", &fonts),
    );
    // Matplotlib works without; the first plot of each sandbox just takes longer.
    if !looked {
        let _ = fs::remove_dir_all(&fonts);
        return Ok(());
    }
    for (name, text) in [
        ("ringfence_matplotlib.py", FONTS),
        ("ringfence_matplotlib.pth", "import ringfence_matplotlib\n"),
    ] {
        let path = site.join(name);
        fs::write(&path, text)
            .map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))?;
    }
    Ok(())
}

/// Everyone may read what the owner may, and enter or run what the owner may.
fn open_to_all(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let mode = metadata.permissions().mode();
    let open = mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6;
    if open != mode {
        fs::set_permissions(path, fs::Permissions::from_mode(open))?;
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            open_to_all(&entry?.path())?;
        }
    }
    Ok(())
}
