//! The event that the journal waits for before an entry counts as written.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// The kind of crash that loses no acknowledged entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Durability {
    /// A power failure: every commit waits for the disk.
    #[default]
    PowerLoss,
    /// The end of the process: a commit waits for the kernel, and a power failure may lose the last entries.
    ProcessCrash,
}

impl Durability {
    /// The word in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// `true` for the default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
