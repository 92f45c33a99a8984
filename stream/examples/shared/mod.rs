//! Code that the examples share: the address, and the reporting of errors.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use uverbs::cm::Address;
use uverbs_stream::Config;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The address on the command line, or else one on the software device.
pub(crate) fn place() -> Result<(Config, SocketAddr), Failure> {
    let Some(text) = std::env::args().nth(1) else {
        let software = uverbs::device("soft")?.open()?;
        return Ok((Config::new().context(&software), (Ipv4Addr::LOCALHOST, 0).into()));
    };
    let mut found = Address(&text).to_socket_addrs().map_err(|error| format!("{text}: {error}"))?;
    Ok((Config::new(), found.next().ok_or("the name has no address")?))
}

/// The text of an error and of its sources, without repetitions.
pub(crate) fn in_words(error: &(dyn Error + 'static)) -> String {
    let (mut text, mut next) = (error.to_string(), error.source());
    while let Some(source) = next {
        let cause = source.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        next = source.source();
    }
    text
}

/// Reports the program's result.
pub(crate) fn end(result: Result<(), Failure>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("{}", in_words(&*error));
    ExitCode::FAILURE
}
