//! The code that both ends of a rendezvous must have, and the proof that an end has it.
//!
//! The code itself is never sent. Each end draws a nonce. A proof is BLAKE3, keyed with a key
//! derived from the code, over the prover's role, the service and both nonces. So a proof is valid
//! for one connection and one direction. A listener of another user on the same port, or an
//! eavesdropper, can test codes offline against a recorded proof. That does not find a code that
//! the listening end made up, because it has 80 random bits. A proof determines who may connect; it
//! does not encrypt or authenticate the later messages.

use std::fs::File;
use std::io::Read;

use crate::args::CodeChoice;
use crate::failure::{Context, Outcome};

/// Environment variable for the code. Unlike `--code`, it is not visible in the process list.
pub(crate) const CODE_VARIABLE: &str = "UVERBS_CODE";
/// Context of BLAKE3's key derivation: no other use of the same code has this key.
const CONTEXT: &str = "uverbs command, rendezvous of two ends, code, version 1";
/// Digits and letters without those that are easily confused (i, l, o, u): five bits each.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Characters of a generated code, in groups of four: 80 bits.
const LENGTH: usize = 16;
const GROUP: usize = 4;

/// One end's contribution to a connection's proofs.
pub(super) type Nonce = [u8; 32];

/// Which end proves.
#[derive(Debug, Clone, Copy)]
pub(super) enum Role {
    Client,
    Listener,
}

/// The code of one end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Code {
    /// Given with `--code` or in the environment.
    Given(String),
    /// Made up by this end, which prints it.
    MadeUp(String),
    /// `--no-code`: the end accepts any peer.
    Off,
}

impl Code {
    /// The listening end's code: the given one, else a generated one.
    pub(crate) fn to_listen(choice: &CodeChoice) -> Outcome<Self> {
        asked(choice).map_or_else(Self::make_up, Ok)
    }

    /// The connecting end's code, if it has one.
    pub(crate) fn to_connect(choice: &CodeChoice) -> Option<Self> {
        asked(choice)
    }

    /// A code that cannot be guessed.
    pub(crate) fn make_up() -> Outcome<Self> {
        let mut text = String::new();
        for (at, byte) in random::<LENGTH>()?.into_iter().enumerate() {
            if at > 0 && at.is_multiple_of(GROUP) {
                text.push('-');
            }
            text.push(ALPHABET[usize::from(byte % 32)].into());
        }
        Ok(Self::MadeUp(text))
    }

    /// The code, if this end generated it: its user has to pass it on.
    pub(crate) fn to_pass_on(&self) -> Option<&str> {
        match self {
            Self::MadeUp(text) => Some(text),
            Self::Given(_) | Self::Off => None,
        }
    }

    pub(super) fn is_off(&self) -> bool {
        *self == Self::Off
    }

    /// The proof of the end with this `role` for one connection.
    pub(super) fn proof(
        &self,
        role: Role,
        service: &str,
        listener: &Nonce,
        client: &Nonce,
    ) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key());
        hasher.update(match role {
            Role::Client => b"client  ",
            Role::Listener => b"listener",
        });
        hasher.update(listener).update(client).update(service.as_bytes());
        hasher.finalize()
    }

    fn key(&self) -> [u8; blake3::KEY_LEN] {
        match self {
            Self::Given(text) | Self::MadeUp(text) => blake3::derive_key(CONTEXT, text.as_bytes()),
            Self::Off => blake3::derive_key(CONTEXT, b""),
        }
    }
}

fn asked(choice: &CodeChoice) -> Option<Code> {
    if choice.no_code {
        return Some(Code::Off);
    }
    let variable = || std::env::var(CODE_VARIABLE).ok().filter(|code| !code.is_empty());
    choice.code.clone().or_else(variable).map(Code::Given)
}

/// Bytes that cannot be predicted.
pub(crate) fn random<const N: usize>() -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context(|| "cannot read random bytes from /dev/urandom".into())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Code {
        Code::Given(text.into())
    }

    #[test]
    fn a_proof_is_good_for_one_code_role_service_and_connection() {
        let (a, b): (Nonce, Nonce) = ([1; 32], [2; 32]);
        let proof = given("tulip").proof(Role::Client, "perf", &a, &b);
        assert_eq!(proof, given("tulip").proof(Role::Client, "perf", &a, &b));
        for other in [
            given("tulips").proof(Role::Client, "perf", &a, &b),
            given("tulip").proof(Role::Listener, "perf", &a, &b),
            given("tulip").proof(Role::Client, "transfer", &a, &b),
            given("tulip").proof(Role::Client, "perf", &b, &b),
            given("tulip").proof(Role::Client, "perf", &a, &a),
            Code::Off.proof(Role::Client, "perf", &a, &b),
        ] {
            assert_ne!(proof, other);
        }
    }

    #[test]
    fn codes_that_are_made_up_differ_and_can_be_typed() {
        let (Code::MadeUp(one), Code::MadeUp(other)) =
            (Code::make_up().expect("a code"), Code::make_up().expect("a code"))
        else {
            panic!("made up");
        };
        assert_ne!(one, other);
        assert_eq!(one.split('-').map(str::len).collect::<Vec<_>>(), [4; 4]);
    }
}
