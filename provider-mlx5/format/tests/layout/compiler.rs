//! Runs the C compiler.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// The values of C expressions, after `prelude`. `None`, with a message, if there is no compiler.
pub(crate) fn values<'a>(
    prelude: &str,
    expressions: impl Iterator<Item = &'a str>,
) -> Option<Vec<u64>> {
    let mut source = String::from(prelude);
    source.push_str("\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n");
    for expression in expressions {
        let _ = writeln!(source, "printf(\"%llu\\n\", (unsigned long long)({expression}));");
    }
    source.push_str("return 0; }\n");
    let program = compile(&source)?;
    let output = Command::new(&program).output().expect("the program that was just compiled runs");
    let text = String::from_utf8(output.stdout).expect("digits");
    Some(text.lines().map(|line| line.parse().expect("a number")).collect())
}

fn compile(source: &str) -> Option<PathBuf> {
    // A directory per source, because tests run in parallel.
    let hash = source.bytes().fold(5381u64, |hash, byte| hash.wrapping_mul(33) ^ u64::from(byte));
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("layout-{hash:016x}"));
    std::fs::create_dir_all(&directory).expect("the target directory is writable");
    let (input, program) = (directory.join("layout.c"), directory.join("layout"));
    std::fs::write(&input, source).expect("the target directory is writable");
    let output = Command::new("cc").arg("-w").arg("-o").arg(&program).arg(&input).output();
    let Ok(output) = output else {
        skip("there is no C compiler (cc)");
        return None;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} does not compile:\n{errors}", input.display());
    Some(program)
}

/// Prints that a test is skipped, and why. With `CI` set it fails.
pub(crate) fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI is set, and {why}");
    eprintln!("skipped: {why}");
}
