//! Serde for values that pass between two processes of one build: paths of any bytes, and byte strings as one piece.

/// For `#[serde(with = "portable::paths")]`. Serde's own form of a path must be UTF-8.
pub mod paths {
    use std::collections::BTreeSet;
    use std::ffi::OsString;
    use std::path::PathBuf;

    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// A value that holds paths.
    pub trait Paths: Sized {
        /// The same with `OsString`s.
        type Portable: Serialize + DeserializeOwned;

        fn to_portable(&self) -> Self::Portable;
        fn of_portable(portable: Self::Portable) -> Self;
    }

    impl Paths for PathBuf {
        type Portable = OsString;

        fn to_portable(&self) -> OsString {
            self.as_os_str().to_owned()
        }

        fn of_portable(portable: OsString) -> PathBuf {
            portable.into()
        }
    }

    impl<P: Paths> Paths for Option<P> {
        type Portable = Option<P::Portable>;

        fn to_portable(&self) -> Self::Portable {
            self.as_ref().map(P::to_portable)
        }

        fn of_portable(portable: Self::Portable) -> Self {
            portable.map(P::of_portable)
        }
    }

    impl<P: Paths> Paths for Vec<P> {
        type Portable = Vec<P::Portable>;

        fn to_portable(&self) -> Self::Portable {
            self.iter().map(P::to_portable).collect()
        }

        fn of_portable(portable: Self::Portable) -> Self {
            portable.into_iter().map(P::of_portable).collect()
        }
    }

    impl<P: Paths> Paths for [P; 2] {
        type Portable = [P::Portable; 2];

        fn to_portable(&self) -> Self::Portable {
            self.each_ref().map(P::to_portable)
        }

        fn of_portable(portable: Self::Portable) -> Self {
            portable.map(P::of_portable)
        }
    }

    impl<P: Paths + Ord> Paths for BTreeSet<P> {
        type Portable = Vec<P::Portable>;

        fn to_portable(&self) -> Self::Portable {
            self.iter().map(P::to_portable).collect()
        }

        fn of_portable(portable: Self::Portable) -> Self {
            portable.into_iter().map(P::of_portable).collect()
        }
    }

    pub fn serialize<P: Paths, S: Serializer>(paths: &P, serializer: S) -> Result<S::Ok, S::Error> {
        paths.to_portable().serialize(serializer)
    }

    pub fn deserialize<'de, P: Paths, D: Deserializer<'de>>(deserializer: D) -> Result<P, D::Error> {
        P::Portable::deserialize(deserializer).map(P::of_portable)
    }
}

/// For `#[serde(with = "portable::bytes")]`: copied as a whole, not byte by byte.
pub mod bytes {
    use serde::de::Visitor;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}
