//! The native additions to a registry.

use std::sync::Arc;

use rollmesh_core::{
    kernels::Kernels,
    worker::{Registry, RolloutError, WorkerSpec, device_fingerprint},
};

use crate::{
    envs::{guarded, python},
    learner::{DeviceError, DeviceSpec, FittedQ, forward_on, register_learning_policies},
    offline,
};

/// Adds to a registry the features that a native program supports; [`main_with`](crate::main_with) calls it. It adds
/// the policies that learn, unless their names are taken; converts panics of environments to errors; treats
/// unregistered inputs and outputs as files; fits value models with [`FittedQ`]; and resolves Python environments by
/// name, as far as [`PythonSettings`](crate::envs::PythonSettings) allow them.
///
/// ```
/// let registry = rollmesh::native(rollmesh::Registry::builtin());
/// assert!(registry.policies.spec("ppo").is_ok());
/// ```
#[must_use]
pub fn native(mut registry: Registry) -> Registry {
    registry.envs = guarded(&registry.envs);
    #[cfg(unix)]
    registry.envs.resolver.get_or_insert_with(python::resolver);
    register_learning_policies(&mut registry.policies);
    registry.file_input.get_or_insert_with(|| Arc::new(offline::open_input));
    registry.file_output.get_or_insert_with(|| Arc::new(offline::open_output));
    registry.q_model.get_or_insert_with(|| Arc::new(|context| Ok(Box::new(FittedQ::for_context(context)?))));
    registry
}

/// Returns the names of a program whose policies act on a device; `cpu` stands for the kernels.
///
/// # Errors
/// [`DeviceError`] if the device cannot be used.
pub(crate) fn acting_on(registry: &Registry, device: DeviceSpec) -> Result<Registry, DeviceError> {
    let mut registry = registry.clone();
    if device != DeviceSpec::Cpu {
        registry.policies.act_with(forward_on(device.open()?));
    }
    Ok(registry)
}

/// Describes the place where the policies of these names act, for users: the device, and unless it is the CPU the
/// beginning of its [fingerprint](device_fingerprint).
///
/// # Errors
/// The error of the device.
pub(crate) fn shown_device(registry: &Registry, device: DeviceSpec, kernels: Kernels) -> Result<String, RolloutError> {
    let Some(forward) = registry.policies.forward() else { return Ok(device.to_string()) };
    let fingerprint = device_fingerprint(forward.clone(), kernels)?.to_string();
    Ok(format!("{device} {}", fingerprint.get(..8).unwrap_or_default()))
}

/// Returns the device on which a worker's policies act.
///
/// # Errors
/// [`DeviceError::Unknown`].
pub(crate) fn device_of(spec: &WorkerSpec) -> Result<DeviceSpec, DeviceError> {
    spec.device.as_deref().map_or(Ok(DeviceSpec::Cpu), str::parse)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rollmesh_core::{env::EnvSpec, policy::PolicySpec};

    use super::*;

    #[test]
    fn devices_are_shown_with_their_fingerprint() {
        let mut registry = native(Registry::builtin());
        let shown = |registry: &Registry, device| shown_device(registry, device, crate::kernels::AUTO).unwrap();
        assert_eq!(shown(&registry, DeviceSpec::Cpu), "cpu");
        registry.policies.act_with(forward_on(DeviceSpec::Cpu.open().unwrap()));
        let text = shown(&registry, DeviceSpec::Cuda(1));
        let fingerprint = text.strip_prefix("cuda:1 ").unwrap();
        assert!(fingerprint.len() == 8 && fingerprint.bytes().all(|digit| digit.is_ascii_hexdigit()), "{text}");
        assert_eq!(shown(&registry, DeviceSpec::Cuda(1)), text);
    }

    #[test]
    fn users_names_go_before_ours_and_their_panics_do_no_harm() {
        let registry = Registry::builtin()
            .with_env(EnvSpec::new("Broken-v0", |_, _| panic!("no maze")))
            .with_policy(PolicySpec::new("ppo", |_| Err(rollmesh_core::policy::PolicyError::Failed("mine".into()))));
        let registry = native(registry);
        let names: BTreeSet<&str> = registry.policies.iter().map(|spec| spec.name.as_str()).collect();
        let ours = rollmesh_core::policy::PolicyRegistry::NETWORKS.into_iter().chain(["random"]);
        assert_eq!(names, ours.collect());
        let spaces = registry.envs.spec("CartPole-v1").unwrap().spaces().unwrap();
        let context = rollmesh_core::policy::PolicyContext::new(spaces, 0, crate::kernels::AUTO);
        let error = registry.policies.spec("ppo").unwrap().make(&context).err().unwrap();
        assert_eq!(error.to_string(), "the policy failed: mine");
        let error = registry.envs.spec("Broken-v0").unwrap().spaces().unwrap_err();
        assert_eq!(error.to_string(), "the environment failed: panicked: no maze");
    }
}
