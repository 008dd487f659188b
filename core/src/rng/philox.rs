//! Implements the generator: Philox4x32 with ten rounds, and the mixing of keys.

/// Number of words computed together where many are needed.
pub(super) const BULK: usize = 32;

/// Applies the finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words.
pub(super) const fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Computes ten rounds of Philox4x32.
#[inline(always)]
pub(super) const fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut round = 0;
    while round < 10 {
        let a = counter[0] as u64 * 0xD251_1F53;
        let b = counter[2] as u64 * 0xCD9E_8D57;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        round += 1;
    }
    counter
}

/// Computes [`philox`] for a block and the following ones: lane by lane, so that it vectorises.
pub(super) fn philox_many(counter: [u32; 4], key: [u32; 2]) -> [u32; BULK] {
    const LANES: usize = BULK / 4;
    let mut lanes = counter.map(|word| [word; LANES]);
    for (i, word) in lanes[3].iter_mut().enumerate() {
        *word += i as u32;
    }
    let mut key = key;
    for _ in 0..10 {
        let [c0, c1, c2, c3] = &mut lanes;
        for i in 0..LANES {
            let a = u64::from(c0[i]) * 0xD251_1F53;
            let b = u64::from(c2[i]) * 0xCD9E_8D57;
            c0[i] = (b >> 32) as u32 ^ c1[i] ^ key[0];
            c1[i] = b as u32;
            c2[i] = (a >> 32) as u32 ^ c3[i] ^ key[1];
            c3[i] = a as u32;
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    core::array::from_fn(|i| lanes[i % 4][i / 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with known answers of the authors' Random123 distribution.
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
