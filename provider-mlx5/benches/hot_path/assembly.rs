//! The code that the compiler makes of the hottest functions, against the texts checked in
//! beside this file.
//!
//! The program disassembles itself with objdump. With any compiler the functions have no path to a
//! panic, and call only cold code. With the compiler that made the recorded texts they equal these
//! texts, so that a change shows as a diff. In the whole program no load waits for a narrower
//! store: `forwarding.rs`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use uverbs_mlx5::completion_queue::CompletionQueue;
use uverbs_mlx5::recv_queue::RecvQueue;
use uverbs_mlx5::request::{PostError, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{Inline, Rc, SendQueue, Template, Write};

use super::limits::{compiler, skip};

/// Posts an RDMA write of 16 inline bytes.
#[unsafe(no_mangle)]
#[inline(never)]
fn hot_write_inline_16(
    queue: &mut SendQueue<Rc>,
    wr_id: u64,
    remote: &Remote,
    data: &[u8; 16],
) -> Result<(), PostError> {
    // SAFETY: inline data is copied, so no memory is shared.
    unsafe { queue.post(wr_id, Write(*remote), Inline(data), PostFlags::empty()) }
}

/// The same with a length known at run time.
#[unsafe(no_mangle)]
#[inline(never)]
fn hot_write_inline(
    queue: &mut SendQueue<Rc>,
    wr_id: u64,
    remote: &Remote,
    data: &[u8],
) -> Result<(), PostError> {
    // SAFETY: inline data is copied, so no memory is shared.
    unsafe { queue.post(wr_id, Write(*remote), Inline(data), PostFlags::empty()) }
}

/// Posts an RDMA write of one SGE.
#[unsafe(no_mangle)]
#[inline(never)]
fn hot_write_sge(
    queue: &mut SendQueue<Rc>,
    wr_id: u64,
    remote: &Remote,
    sge: &Sge,
) -> Result<(), PostError> {
    // SAFETY: never called.
    unsafe { queue.post(wr_id, Write(*remote), *sge, PostFlags::SIGNALED) }
}

/// Posts a template's request.
#[unsafe(no_mangle)]
#[inline(never)]
fn hot_template(
    queue: &mut SendQueue<Rc>,
    wr_id: u64,
    template: &Template<Write>,
) -> Result<(), PostError> {
    // SAFETY: never called.
    unsafe { queue.post_template(wr_id, template) }
}

/// Posts a template's request of two blocks.
#[unsafe(no_mangle)]
#[inline(never)]
fn hot_template_2(
    queue: &mut SendQueue<Rc>,
    wr_id: u64,
    template: &Template<Write, 2>,
) -> Result<(), PostError> {
    // SAFETY: never called.
    unsafe { queue.post_template(wr_id, template) }
}

/// Builds a receive of one SGE, and publishes it.
#[unsafe(no_mangle)]
#[inline(never)]
fn hot_recv(queue: &mut RecvQueue, wr_id: u64, sge: &[Sge; 1]) -> Result<(), PostError> {
    // SAFETY: never called.
    let posted = unsafe { queue.build(wr_id, sge) };
    queue.publish();
    posted
}

/// The id of the next completion, if there is one without an error.
#[unsafe(no_mangle)]
#[inline(never)]
fn hot_poll(queue: &mut CompletionQueue) -> Option<u64> {
    let completion = queue.poll().ok()?;
    completion.is_success().then_some(completion.wr_id())
}

/// The functions, and where they are.
fn hottest() -> [(&'static str, usize); 7] {
    [
        ("hot_write_inline_16", hot_write_inline_16 as *const () as usize),
        ("hot_write_inline", hot_write_inline as *const () as usize),
        ("hot_write_sge", hot_write_sge as *const () as usize),
        ("hot_template", hot_template as *const () as usize),
        ("hot_template_2", hot_template_2 as *const () as usize),
        ("hot_recv", hot_recv as *const () as usize),
        ("hot_poll", hot_poll as *const () as usize),
    ]
}

/// What may be called: all of it cold, and out of line.
const COLD: [&str; 9] = [
    "::answer_requests",
    "::post_slow",
    "::reopen",
    "::post_unusual",
    "::post_image",
    "::post_closed",
    "::build_slow",
    "::poll_slow",
    "::next_lap",
];

/// A function's instructions, and the functions that it calls.
struct Code {
    text: String,
    calls: Vec<String>,
}

fn objdump(arguments: &[&str]) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("objdump").args(arguments).arg(program).output();
    let output = output.map_err(|error| format!("objdump: {error} (Debian: binutils)"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Names of functions by address.
fn symbols() -> Result<BTreeMap<usize, String>, String> {
    let table = objdump(&["--syms", "--demangle"])?;
    let entry = |line: &str| {
        let address = usize::from_str_radix(line.split_whitespace().next()?, 16).ok()?;
        let (_, name) = line.split_once(".text\t")?;
        let (_, name) = name.split_once(' ')?;
        Some((address, name.trim_start().trim_start_matches(".hidden ").to_owned()))
    };
    Ok(table.lines().filter_map(entry).collect())
}

/// Disassembles one function. Addresses that depend on the rest of the program are left out.
fn code(name: &str, runtime: usize, symbols: &BTreeMap<usize, String>) -> Result<Code, String> {
    let listing =
        objdump(&["-d", "--no-show-raw-insn", "--demangle", &format!("--disassemble={name}")])?;
    let start = symbols.iter().find(|(_, symbol)| *symbol == name).map(|(address, _)| *address);
    let base = runtime.wrapping_sub(start.ok_or("the function has no symbol")?);
    let mut code = Code { text: String::new(), calls: Vec::new() };
    for line in listing.lines() {
        let Some((address, instruction)) = line.trim_start().split_once(":\t") else { continue };
        let Ok(address) = usize::from_str_radix(address, 16) else { continue };
        if instruction.contains("nop") || instruction.starts_with("data16") || instruction == "int3"
        {
            continue;
        }
        let offset = start.map_or(0, |start| address - start);
        let (text, callee) = shown(instruction, base, symbols);
        code.text += &format!("{offset:4x}  {text}\n");
        code.calls.extend(callee);
    }
    Ok(code)
}

/// The text of an instruction, and the function that it calls.
fn shown(
    instruction: &str,
    base: usize,
    symbols: &BTreeMap<usize, String>,
) -> (String, Option<String>) {
    let (bare, comment) = instruction.split_once('#').unwrap_or((instruction, ""));
    let words: Vec<&str> = bare.split_whitespace().collect();
    match words[..] {
        // A jump table of a match: none of these functions ends in a call through a register.
        ["jmp", target] if target.starts_with("*%") => (bare.trim().to_owned(), None),
        [verb @ ("call" | "jmp"), target] if target.starts_with('*') || comment.contains('<') => {
            let callee = indirect(comment, base, symbols);
            (format!("{verb} {callee}"), Some(callee))
        }
        [verb @ ("call" | "jmp"), _, ref rest @ ..] if !rest.concat().contains('+') => {
            let callee = rest.join(" ").trim_matches(['<', '>']).to_owned();
            (format!("{verb} {callee}"), Some(callee))
        }
        [jump, _, inside] if jump.starts_with('j') => match inside.split_once('+') {
            Some((_, target)) => (format!("{jump} +{}", target.trim_end_matches('>')), None),
            None => (format!("{jump} {inside}"), None),
        },
        _ => (relative(&words.join(" ")), None),
    }
}

/// The function behind an entry of the import table, which in this process has its address.
fn indirect(comment: &str, base: usize, symbols: &BTreeMap<usize, String>) -> String {
    let slot = comment.split_whitespace().next().and_then(|at| usize::from_str_radix(at, 16).ok());
    let Some(slot) = slot else { return "an unknown function".to_owned() };
    // SAFETY: an entry of this program's own table, which the loader has filled.
    let callee = unsafe { *std::ptr::with_exposed_provenance::<usize>(base.wrapping_add(slot)) };
    symbols.get(&callee.wrapping_sub(base)).cloned().unwrap_or("a library's function".to_owned())
}

/// Leaves out the address of a constant, which the linker chooses.
fn relative(instruction: &str) -> String {
    match (instruction.find("(%rip)"), instruction.rfind("0x")) {
        (Some(end), Some(start)) if start < end => {
            format!("{}…{}", &instruction[..start], &instruction[end..])
        }
        _ => instruction.to_owned(),
    }
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/hot_path/assembly")
}

/// Compares all of them, or writes the texts anew.
pub(crate) fn check(write: bool) -> ExitCode {
    if !cfg!(target_arch = "x86_64") {
        println!("the texts are of x86-64");
        return ExitCode::SUCCESS;
    }
    let symbols = match symbols() {
        Ok(symbols) => symbols,
        Err(missing) => return skip(&missing),
    };
    let mut good = true;
    for (name, runtime) in hottest() {
        match code(name, runtime, &symbols) {
            Ok(code) => good &= is_good(name, &code, write),
            Err(missing) => return skip(&missing),
        }
    }
    match objdump(&["-d", "--no-show-raw-insn", "--demangle"]) {
        Ok(listing) => good &= super::forwarding::check(&listing),
        Err(missing) => return skip(&missing),
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn is_good(name: &str, code: &Code, write: bool) -> bool {
    let allowed = |call: &&String| !COLD.iter().any(|cold| call.ends_with(cold));
    let hot: Vec<_> = code.calls.iter().filter(allowed).collect();
    for call in &hot {
        println!("{name} calls {call}, which is not known to be cold");
    }
    let path = directory().join(format!("{name}.txt"));
    let header = format!("# {}\n", compiler());
    if write {
        std::fs::create_dir_all(directory()).expect("the directory is writable");
        std::fs::write(&path, header.clone() + &code.text).expect("the directory is writable");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let count = code.text.lines().count();
    let Some(before) = text.strip_prefix(&header) else {
        println!("{name}: {count} instructions; the text is another compiler's, not compared");
        return hot.is_empty();
    };
    let same = before == code.text;
    println!("{name}: {count} instructions, {}", if same { "as checked in" } else { "CHANGED" });
    if !same {
        before.lines().map(|line| format!("- {line}")).for_each(|line| println!("{line}"));
        code.text.lines().map(|line| format!("+ {line}")).for_each(|line| println!("{line}"));
    }
    same && hot.is_empty()
}
