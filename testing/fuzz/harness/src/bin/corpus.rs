//! Converts committed inputs to a directory with a file for each input, as a fuzzer expects, and
//! back.

use std::path::Path;
use std::process::ExitCode;

use uverbs_fuzz_harness::corpus;

const USAGE: &str = "usage: corpus unpack TARGET DIRECTORY    writes the committed inputs as files
       corpus pack TARGET DIRECTORY      makes the files of DIRECTORY the committed corpus";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["unpack", target, directory] => unpack(target, Path::new(directory)),
        ["pack", target, directory] => pack(target, Path::new(directory)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(count) => {
            println!("{count} inputs");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn unpack(target: &str, directory: &Path) -> std::io::Result<usize> {
    std::fs::create_dir_all(directory)?;
    let mut count = 0;
    for file in corpus::files(target) {
        for input in corpus::read(&file)? {
            std::fs::write(directory.join(format!("{count:05}-{}", input.name)), input.bytes)?;
            count += 1;
        }
    }
    Ok(count)
}

fn pack(target: &str, directory: &Path) -> std::io::Result<usize> {
    let mut inputs = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        inputs.push(std::fs::read(entry?.path())?);
    }
    let [corpus, _] = corpus::files(target);
    let text = corpus::text(inputs);
    std::fs::write(corpus, &text)?;
    Ok(text.lines().count())
}
