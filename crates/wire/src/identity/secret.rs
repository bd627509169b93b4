//! The secret of a job: 32 random bytes in a file, in base64.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{Mode, OFlags};
use zeroize::Zeroizing;

/// Bytes of a secret.
const LENGTH: usize = 32;
/// A file of this size is no secret. Some editors and tools add a newline or two.
const MAX_FILE: u64 = 256;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Why a secret cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("cannot read the job's secret from \"{}\"", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("\"{}\" is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error("other users can read the job's secret in \"{}\" (mode {mode:04o})", path.display())]
    Readable { path: PathBuf, mode: u32 },
    #[error("other users can change the job's secret in \"{}\" (mode {mode:04o})", path.display())]
    Writable { path: PathBuf, mode: u32 },
    #[error("the job's secret in \"{}\" belongs to user {owner}", path.display())]
    OtherOwner { path: PathBuf, owner: u32 },
    #[error("\"{}\" does not hold 32 bytes in base64", path.display())]
    Malformed { path: PathBuf },
}

impl SecretError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            SecretError::Readable { path, .. } | SecretError::Writable { path, .. } => {
                Some(format!("chmod 600 {}; in a Kubernetes volume of a Secret, defaultMode: 0400", path.display()))
            }
            SecretError::Malformed { path } => {
                Some(format!("(umask 077; head -c 32 /dev/urandom | base64 > {})", path.display()))
            }
            SecretError::Read { .. } | SecretError::NotAFile { .. } | SecretError::OtherOwner { .. } => None,
        }
    }
}

/// The secret of one job. It is erased when it is dropped, and cannot be printed (S-5).
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; LENGTH]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A new one.
    pub fn generate() -> io::Result<Secret> {
        let mut bytes = Zeroizing::new([0; LENGTH]);
        SystemRandom::new().fill(&mut bytes[..]).map_err(|_| io::Error::other("the kernel has no random numbers"))?;
        Ok(Secret(bytes))
    }

    /// Reads it from a file that only this user can read. A file of root may be readable for a group: so it is handed to
    /// a process of another user, as in Kubernetes with `fsGroup`.
    pub fn read(path: &Path) -> Result<Secret, SecretError> {
        let failed = |source: io::Error| SecretError::Read { path: path.to_owned(), source };
        // A FIFO must not make us wait. Symbolic links are followed: Kubernetes mounts secrets behind them.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let mut file = std::fs::File::from(file);
        let facts = file.metadata().map_err(failed)?;
        let (path, mode) = (path.to_owned(), facts.mode() & 0o777);
        if !facts.is_file() {
            return Err(SecretError::NotAFile { path });
        }
        let own = rustix::process::geteuid().as_raw();
        let readable = if facts.uid() == own { 0o044 } else { 0o004 };
        match () {
            () if facts.uid() != own && facts.uid() != 0 => {
                return Err(SecretError::OtherOwner { path, owner: facts.uid() });
            }
            () if mode & 0o022 != 0 => return Err(SecretError::Writable { path, mode }),
            () if mode & readable != 0 => return Err(SecretError::Readable { path, mode }),
            () => {}
        }
        let mut text = Zeroizing::new(Vec::with_capacity(MAX_FILE as usize + 1));
        let read = (&mut file).take(MAX_FILE + 1).read_to_end(&mut text);
        read.map_err(|source| SecretError::Read { path: path.clone(), source })?;
        Secret::parse(&text).ok_or(SecretError::Malformed { path })
    }

    /// 32 bytes in base64, with white space around them.
    pub fn parse(text: &[u8]) -> Option<Secret> {
        let digits = text.trim_ascii();
        let digits = digits.strip_suffix(b"=").unwrap_or(digits);
        if text.len() as u64 > MAX_FILE || digits.len() != (LENGTH * 8).div_ceil(6) {
            return None;
        }
        let mut bytes = Zeroizing::new([0; LENGTH]);
        let (mut bits, mut held, mut at) = (0u32, 0, 0);
        for digit in digits {
            let value = ALPHABET.iter().position(|known| known == digit)?;
            (bits, held) = (bits << 6 | value as u32, held + 6);
            if held >= 8 {
                held -= 8;
                *bytes.get_mut(at)? = (bits >> held) as u8;
                at += 1;
            }
        }
        // What is over must be zero, or two texts would be one secret.
        (bits & ((1 << held) - 1) == 0).then_some(Secret(bytes))
    }

    /// As [`Secret::parse`] reads it, for the file or the pipe through which another node gets it.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(LENGTH.div_ceil(3) * 4 + 1));
        for piece in self.0.chunks(3) {
            let bits = (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(piece.get(at).copied().unwrap_or_default()));
            for digit in 0..4 {
                let value = (bits >> (18 - 6 * digit)) & 63;
                text.push(if digit <= piece.len() { char::from(ALPHABET[value as usize]) } else { '=' });
            }
        }
        text.push('\n');
        text
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0[..]
    }

    /// A key for one purpose. Keys of different purposes have nothing to do with each other (HKDF, RFC 5869).
    pub(crate) fn key(&self, label: Label) -> hmac::Key {
        let salt = ring::hkdf::Salt::new(ring::hkdf::HKDF_SHA256, b"rankrun job secret");
        let derived = salt.extract(&self.0[..]);
        let info = [label.text().as_bytes()];
        // HKDF refuses only more than 255 hashes of output; this is one.
        let derived = derived.expand(&info, hmac::HMAC_SHA256).expect("one hash of output");
        derived.into()
    }
}

/// For a file that only this user can read, where another front may take the place of one (S-5).
pub mod kept {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use zeroize::Zeroizing;

    use super::{LENGTH, Secret};

    pub fn serialize<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
        secret.0.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        Ok(Secret(Zeroizing::new(<[u8; LENGTH]>::deserialize(deserializer)?)))
    }
}

/// What a key of the secret is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Label {
    Knock,
    Answer,
    /// A node's proof, and the front's (S-3).
    NodeProof,
    FrontProof,
}

impl Label {
    fn text(self) -> &'static str {
        match self {
            Label::Knock => "rankrun 1 knock",
            Label::Answer => "rankrun 1 answer",
            Label::NodeProof => "rankrun 1 node proof",
            Label::FrontProof => "rankrun 1 front proof",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(directory: &Path, text: &[u8], mode: u32) -> PathBuf {
        let path = directory.join("secret");
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
        path
    }

    #[test]
    fn a_secret_reads_as_it_was_written() {
        let secret = Secret::generate().expect("random numbers");
        let text = secret.to_text();
        assert_eq!(text.len(), 45);
        assert_eq!(*Secret::parse(text.as_bytes()).expect("our own text").0, *secret.0);
        // As `base64` of coreutils has it.
        let zeros = b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
        assert_eq!(*Secret::parse(zeros).expect("base64").0, [0; 32]);
        let counted = b" AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\n\n";
        assert_eq!(*Secret::parse(counted).expect("base64").0, std::array::from_fn(|at| at as u8));
    }

    #[test]
    fn what_is_not_32_bytes_in_base64_is_refused() {
        let long = [b'A'; 300];
        let texts: [&[u8]; 6] = [
            b"",
            b"AAAA",
            b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB=",
            b"AAAAAAAAAAAAAAAAAAAAAA AAAAAAAAAAAAAAAAAAAA=",
            b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            &long,
        ];
        for text in texts {
            assert!(Secret::parse(text).is_none(), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = Secret::generate().expect("random numbers").to_text();
        for mode in [0o600, 0o400] {
            let path = write(directory.path(), text.as_bytes(), mode);
            assert!(Secret::read(&path).is_ok(), "{mode:o}");
            std::fs::remove_file(&path).expect("it is there");
        }
        for mode in [0o640, 0o604, 0o444] {
            let path = write(directory.path(), text.as_bytes(), mode);
            assert!(matches!(Secret::read(&path), Err(SecretError::Readable { .. })), "{mode:o}");
            std::fs::remove_file(&path).expect("it is there");
        }
        for mode in [0o620, 0o602, 0o666] {
            let path = write(directory.path(), text.as_bytes(), mode);
            assert!(matches!(Secret::read(&path), Err(SecretError::Writable { .. })), "{mode:o}");
            std::fs::remove_file(&path).expect("it is there");
        }
        let path = write(directory.path(), b"hunter2\n", 0o600);
        let error = Secret::read(&path).expect_err("no secret");
        assert!(matches!(error, SecretError::Malformed { .. }));
        assert!(!format!("{error} {error:?} {:?}", error.hint()).contains("hunter2"));
        assert!(matches!(Secret::read(directory.path()), Err(SecretError::NotAFile { .. })));
        assert!(matches!(Secret::read(&directory.path().join("none")), Err(SecretError::Read { .. })));
    }

    #[test]
    fn keys_differ_by_purpose_and_a_secret_cannot_be_printed() {
        let secret = Secret::generate().expect("random numbers");
        let tags: Vec<hmac::Tag> = [Label::Knock, Label::Answer, Label::NodeProof, Label::FrontProof]
            .map(|purpose| hmac::sign(&secret.key(purpose), b"x"))
            .into();
        for (at, tag) in tags.iter().enumerate() {
            assert!(tags[..at].iter().all(|other| other.as_ref() != tag.as_ref()));
        }
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
