use super::Release;
use anyhow::Result;
pub(crate) fn check(_release: &Release<'_>) -> Result<()> {
    Ok(())
}
