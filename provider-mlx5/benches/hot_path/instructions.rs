//! Instructions per operation: this program runs itself under callgrind.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;
use std::process::Command;

use super::valgrind;

/// Batches that are counted, after one that is not.
const BATCHES: usize = 4;

/// Counts one case; to be called under callgrind.
pub(crate) fn count(name: &str, mut run: impl FnMut() -> u64) {
    run();
    valgrind::zero();
    for _ in 0..BATCHES {
        run();
    }
    let name = CString::new(name).expect("names have no zeros");
    valgrind::dump(&name);
}

/// Runs this program with `argument` under callgrind; instructions per operation by the name given
/// to [`count`].
///
/// # Errors
/// What is missing, in words.
pub(crate) fn run(argument: &str, directory: &Path) -> Result<BTreeMap<String, f64>, String> {
    let counts = events(argument, directory, &[])?;
    Ok(counts.into_iter().map(|(name, events)| (name, events[0])).collect())
}

/// [`run`] with more options of callgrind's: all events that it counts then, in its order.
///
/// # Errors
/// As for [`run`].
pub(crate) fn events(
    argument: &str,
    directory: &Path,
    options: &[&str],
) -> Result<BTreeMap<String, Vec<f64>>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory).map_err(|error| error.to_string())?;
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(directory.join("counts"));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .args(options)
        .arg(out)
        .arg(program)
        .arg(argument)
        .env("LD_BIND_NOW", "1")
        .output()
        .map_err(|error| format!("valgrind: {error} (Debian: apt install valgrind)"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let mut counts = BTreeMap::new();
    for entry in std::fs::read_dir(directory).map_err(|error| error.to_string())?.flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        counts.extend(parse(&text));
    }
    let _ = std::fs::remove_dir_all(directory);
    Ok(counts)
}

/// Name and counts of one dump, per operation.
fn parse(text: &str) -> Option<(String, Vec<f64>)> {
    let after = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let name = after("desc: Trigger: Client Request: ")?;
    let totals = after("totals: ").or_else(|| after("summary: "))?.split_whitespace();
    let each =
        |total: &str| Some(total.parse::<f64>().ok()? / (BATCHES * super::OPERATIONS) as f64);
    Some((name.to_owned(), totals.map(each).collect::<Option<_>>()?))
}
