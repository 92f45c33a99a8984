//! What the examples share: where they listen, and how they tell an error.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use uverbs::cm::Address;
use uverbs_stream::Config;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The address that the program was given; without one, the software device's.
pub(crate) fn place() -> Result<(Config, SocketAddr), Failure> {
    let Some(text) = std::env::args().nth(1) else {
        let software = uverbs::device("soft")?.open()?;
        return Ok((Config::new().context(&software), (Ipv4Addr::LOCALHOST, 0).into()));
    };
    let mut found = Address(&text).to_socket_addrs().map_err(|error| format!("{text}: {error}"))?;
    Ok((Config::new(), found.next().ok_or("the name has no address")?))
}

/// The words of an error and of its sources, each once.
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

/// Ends the program.
pub(crate) fn end(result: Result<(), Failure>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("{}", in_words(&*error));
    ExitCode::FAILURE
}
