//! From fragments of slots to one batch with every column.

use crate::{
    batch::{
        ADVANTAGES, AGENT_INDEX, BatchError, SampleBatch, SlotFragment, UNROLL_ID, VALUE_TARGETS, VALUES_BOOTSTRAPPED,
    },
    column::ColumnData,
    policy::{Policy, PolicyError, Postprocessing},
    prelude::*,
    sampler::SampleError,
};
