//! The event that the journal waits for before something counts as written.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// The event that loses nothing that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Durability {
    /// A power cut: every commit waits for the disk.
    #[default]
    PowerLoss,
    /// The end of the process: a commit waits for the kernel, and a power cut may lose the last moments.
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
