//! How two ends prove to each other that they have the same code, before any other message.
//!
//! One JSON object per line: the listener's [`Greeting`], the client's [`Introduction`], the
//! listener's [`Acceptance`]. The client proves first, so that a program that only connects gets no
//! proof against which it could test codes.

use blake3::Hash;
use serde::{Deserialize, Serialize};

use super::code::{CODE_VARIABLE, Code, Nonce, Role, random};
use super::{PATIENCE, Rendezvous};
use crate::failure::{Failure, Outcome};

/// What a listening end sends to every client that connects.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    /// The subcommand: `transfer`, `pingpong` or `perf`.
    uverbs: String,
    /// Whether it accepts only clients that have its code.
    needs_code: bool,
    /// 32 bytes in hexadecimal, like the proofs.
    nonce: String,
}

/// The client's answer.
#[derive(Debug, Serialize, Deserialize)]
struct Introduction {
    nonce: String,
    proof: String,
}

/// The listener's own proof.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Acceptance {
    proof: String,
}

/// Why a listening end refuses a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The client gave up, for this reason.
    GaveUp(String),
    /// The client's first line is not an introduction.
    Foreign,
    /// The client's proof was made with another code.
    WrongCode,
}

impl Greeting {
    pub(super) fn new(service: &str, code: &Code, nonce: &Nonce) -> Self {
        Self { uverbs: service.to_owned(), needs_code: !code.is_off(), nonce: hex(nonce) }
    }
}

/// The listener's answer to a client's first `line`.
pub(super) fn check_introduction(
    line: &[u8],
    service: &str,
    code: &Code,
    nonce: &Nonce,
) -> Result<Acceptance, Refusal> {
    if let Some(reason) = super::abort_reason(line) {
        return Err(Refusal::GaveUp(reason));
    }
    let introduction: Introduction = serde_json::from_slice(line).map_err(|_| Refusal::Foreign)?;
    let client = unhex(&introduction.nonce).ok_or(Refusal::Foreign)?;
    let proof = unhex(&introduction.proof).ok_or(Refusal::Foreign)?;
    // Comparing `Hash` values takes constant time.
    if Hash::from_bytes(proof) != code.proof(Role::Client, service, nonce, &client) {
        return Err(Refusal::WrongCode);
    }
    Ok(Acceptance {
        proof: code.proof(Role::Listener, service, nonce, &client).to_hex().to_string(),
    })
}

/// The client's part of the introduction, on a new connection.
pub(super) fn introduce(peer: &mut Rendezvous, service: &str, code: Option<&Code>) -> Outcome {
    let greeting: Greeting = super::parse(&peer.line(PATIENCE).map_err(not_greeted)?)?;
    let checked = greeting.check(service, code);
    let (code, listener) = checked.inspect_err(|failure| peer.abort(&failure.to_string()))?;
    let client = random()?;
    let proof = code.proof(Role::Client, service, &listener, &client).to_hex().to_string();
    peer.send(&Introduction { nonce: hex(&client), proof })?;
    let acceptance: Acceptance = peer.receive()?;
    let expected = code.proof(Role::Listener, service, &listener, &client);
    if unhex(&acceptance.proof).map(Hash::from_bytes) == Some(expected) {
        return Ok(());
    }
    let failure = Failure::failed("the listening end does not have the code that it asks for");
    peer.abort(&failure.to_string());
    Err(failure)
}

/// A listening end speaks first. Other programs may close the connection or wait for the client.
fn not_greeted(failure: Failure) -> Failure {
    Failure::failed(format!("{failure} (is it uverbs that listens on that port?)"))
}

impl Greeting {
    /// The code to use and the listener's nonce, if this client can continue.
    fn check<'a>(&self, service: &str, code: Option<&'a Code>) -> Outcome<(&'a Code, Nonce)> {
        let Some(nonce) = unhex(&self.nonce) else { return Err(Failure::failed(super::foreign())) };
        if self.uverbs != service {
            return Err(Failure::failed(format!(
                "the listening end is uverbs {}, this one uverbs {service}",
                super::shown(&self.uverbs)
            )));
        }
        match (code, self.needs_code) {
            (Some(Code::Off), true) => Err(Failure::usage(
                "the listening end asks for a code: give --code CODE instead of --no-code",
            )),
            (None, true) => Err(Failure::usage(format!(
                "the listening end asks for a code: give --code CODE or set {CODE_VARIABLE}"
            ))),
            (None | Some(Code::Given(_) | Code::MadeUp(_)), false) => Err(Failure::usage(
                "the listening end checks no code (--no-code): give --no-code here, too",
            )),
            (Some(code), _) => Ok((code, nonce)),
        }
    }
}

fn hex(bytes: &Nonce) -> String {
    Hash::from_bytes(*bytes).to_hex().to_string()
}

fn unhex(text: &str) -> Option<Nonce> {
    Hash::from_hex(text).ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NONCE: Nonce = [7; 32];

    fn answer(code: &Code, line: &serde_json::Value) -> Result<Acceptance, Refusal> {
        check_introduction(line.to_string().as_bytes(), "perf", code, &NONCE)
    }

    fn introduction(code: &Code) -> serde_json::Value {
        let proof = code.proof(Role::Client, "perf", &NONCE, &[9; 32]).to_hex().to_string();
        json!({ "nonce": hex(&[9; 32]), "proof": proof })
    }

    #[test]
    fn the_same_code_is_accepted_and_no_other() {
        let code = Code::Given("tulip".into());
        assert!(answer(&code, &introduction(&code)).is_ok());
        let wrong = introduction(&Code::Given("rose".into()));
        assert_eq!(answer(&code, &wrong).expect_err("wrong"), Refusal::WrongCode);
        let off = introduction(&Code::Off);
        assert_eq!(answer(&code, &off).expect_err("none"), Refusal::WrongCode);
    }

    #[test]
    fn a_malformed_introduction_is_foreign() {
        let code = Code::Off;
        for line in [json!({}), json!({ "nonce": "ü", "proof": "00" }), json!([1])] {
            assert_eq!(answer(&code, &line).expect_err("foreign"), Refusal::Foreign, "{line}");
        }
        let reason = answer(&code, &json!({ "abort": "no\u{1b}[2J" })).expect_err("gave up");
        assert_eq!(reason, Refusal::GaveUp("no\\u{1b}[2J".into()));
    }

    #[test]
    fn without_a_greeting_the_other_end_may_be_another_program() {
        let (mut near, far) = Rendezvous::pair();
        drop(far);
        let failure = introduce(&mut near, "perf", None).expect_err("closed");
        assert!(failure.to_string().contains("(is it uverbs that listens"), "{failure}");
        let (mut near, mut far) = Rendezvous::pair();
        far.abort("busy");
        let failure = introduce(&mut near, "perf", None).expect_err("aborted");
        assert_eq!(failure.to_string(), "the peer gave up: busy");
    }
}
