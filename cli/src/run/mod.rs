//! `uverbs run`: runs an unmodified libibverbs program on the software ConnectX, using the preload
//! library.

mod child;
mod library;
mod program;
mod scratch;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use uverbs::soft::settings::open_output;
use uverbs::soft::wire::{HostAddress, Interface};

use crate::args::Run;
use crate::failure::{Context, Failure, Outcome};
use crate::output::{check_writable, remark};
use scratch::Scratch;

/// Runs the program, and ends with its status.
pub(crate) fn run(arguments: &Run) -> Outcome {
    let (name, rest) = arguments
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("a program is missing (uverbs run -- PROGRAM ARGS…)"))?;
    let program = program::find(name)?;
    let library = library::find()?;
    let scratch = Scratch::new()?;
    let mut command = Command::new(&program);
    command.args(rest).env("LD_PRELOAD", preloaded(&library));
    describe(arguments, &mut command)?;
    warn_of_variables(&command);
    command.env("UVERBS_RUN_SYSFS", scratch.path());
    // The program's devices are below `/sys`, not in the user's directory.
    command.env_remove("SYSFS_PATH");
    let fifo = arguments.trace.as_deref().map(fifo).transpose()?;
    let status = child::run(command)
        .context(|| format!("cannot run {}", program.display()))
        .map(|status| child::exit_code(&status))?;
    drop((scratch, fifo));
    if status == 0 { Ok(()) } else { Err(Failure::Ended(status)) }
}

/// The value of `LD_PRELOAD`: the library, then the libraries that the user preloads.
fn preloaded(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// Passes the settings of the devices to the library, which has the same defaults.
fn describe(arguments: &Run, command: &mut Command) -> Outcome {
    command.env("UVERBS_RUN_DEVICES", arguments.devices.to_string());
    command.env("UVERBS_RUN_LINK", word(arguments.link));
    command.env("UVERBS_RUN_MODEL", word(arguments.model));
    command.env("UVERBS_RUN_KERNEL", word(arguments.kernel));
    let variable = std::env::var_os("UVERBS_SOFT_ADDRESS").filter(|list| !list.is_empty());
    let address = arguments.address.clone().map(OsString::from).or(variable);
    check_addresses(address.as_deref(), arguments.devices)?;
    set(command, "UVERBS_RUN_ADDRESS", address);
    command.env("UVERBS_RUN_WIRE", word(arguments.wire));
    set(command, "UVERBS_RUN_FAULTS", arguments.faults.clone().map(OsString::from));
    let pcap = arguments.pcap.as_deref().map(recording).transpose()?;
    set(command, "UVERBS_RUN_PCAP", pcap.map(OsString::from));
    let trace = arguments.trace.as_deref().map(trace).transpose()?;
    set(command, "UVERBS_RUN_TRACE", trace);
    Ok(())
}

/// Warns of variables for the devices of other programs if they differ from the options.
fn warn_of_variables(command: &Command) {
    for (key, option) in command.get_envs() {
        let name = key.to_str().and_then(|key| key.strip_prefix("UVERBS_RUN_"));
        let Some(name) = name else { continue };
        let variable = format!("UVERBS_SOFT_{name}");
        let value = std::env::var_os(&variable).filter(|value| !value.is_empty());
        let Some(value) = value else { continue };
        // Options without a default take precedence if they are given.
        let has_default = !matches!(name, "ADDRESS" | "FAULTS" | "PCAP");
        if option.is_none_or(|option| has_default && option != value) {
            remark(format_args!(
                "uverbs run: {variable} is not for the devices of uverbs run: use --{}",
                name.to_ascii_lowercase()
            ));
        }
    }
}

/// Warns of an address that the machine does not have, for which a program finds no device. It only
/// warns, because a program may enter another network namespace first, or add the address.
fn check_addresses(list: Option<&OsStr>, devices: u32) -> Outcome {
    // The library reports a list that is not UTF-8.
    let Some(list) = list.and_then(OsStr::to_str) else { return Ok(()) };
    for index in 0..devices {
        let address = HostAddress::of_list(list, index).map_err(Failure::usage)?;
        // A loopback address needs no interface.
        if address.station().is_some() {
            continue;
        }
        if let Err(error) = Interface::find(&address) {
            remark(format_args!("uverbs run: no software device here: {error}"));
        }
    }
    Ok(())
}

fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Sets a variable, or removes an inherited one.
fn set(command: &mut Command, name: &str, value: Option<OsString>) {
    match value {
        Some(value) => command.env(name, value),
        None => command.env_remove(name),
    };
}

/// The recording's absolute path. The first device that records replaces an existing file.
fn recording(path: &Path) -> Outcome<PathBuf> {
    let path = absolute(path)?;
    check_writable(&path).context(|| format!("cannot record to {}", path.display()))?;
    Ok(path)
}

/// The trace's absolute path, or `-`. The first process replaces an existing file, and the others
/// append.
fn trace(target: &Path) -> Outcome<OsString> {
    if target == Path::new("-") {
        return Ok(target.into());
    }
    let path = absolute(target)?;
    check_writable(&path).context(|| format!("cannot write the trace to {}", path.display()))?;
    Ok(path.into())
}

/// Opens a trace's FIFO, so that its reader does not see an end between two programs that trace.
fn fifo(target: &Path) -> Outcome<Option<File>> {
    let is_fifo = || target.metadata().is_ok_and(|data| data.file_type().is_fifo());
    if target == Path::new("-") || !is_fifo() {
        return Ok(None);
    }
    open_output(File::options().write(true), target)
        .map(Some)
        .context(|| format!("cannot write the trace to {}", target.display()))
}

/// Makes a path absolute, because the program may change its directory.
fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).context(|| format!("no path {}", path.display()))
}
