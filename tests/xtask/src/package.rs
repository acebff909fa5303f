//! Whether each library and program can be packaged: all that it needs lies in its folder, and all
//! of the workspace that it depends on has a version.

use serde_json::Value;

use crate::steps::{Failed, Steps};

/// Packages everything that may be published, without compiling it and without a network.
pub(crate) fn check(steps: &Steps) -> Result<(), Failed> {
    let metadata = steps.cargo_output("packages", &["metadata", "--no-deps", "--format-version", "1"])?;
    let names = published(&metadata)?;

    let mut arguments = vec!["package", "--quiet", "--offline", "--no-verify", "--allow-dirty"];
    arguments.extend(names.iter().flat_map(|name| ["--package", name]));
    steps.cargo("packages", &arguments)
}

/// Returns the names of the packages that may be published, by the workspace's metadata.
fn published(metadata: &str) -> Result<Vec<String>, Failed> {
    let metadata: Value = serde_json::from_str(metadata)
        .map_err(|error| Failed::new(format!("cargo's metadata are no JSON: {error}")))?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();

    let published = packages.iter().filter(|package| package["publish"].is_null());
    Ok(published.filter_map(|package| package["name"].as_str().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_that_may_not_be_published_are_left_out() {
        let metadata = r#"{"packages": [
            {"name": "library", "publish": null},
            {"name": "tests", "publish": []}
        ]}"#;

        assert_eq!(published(metadata).unwrap(), ["library"]);
        assert!(published("no metadata").is_err());
    }
}
