use super::*;
use crate::{env::RowsRef, space::Space};

fn spaces(dtype: DType) -> EnvSpaces {
    EnvSpaces {
        observation: Space::uniform(dtype, crate::column::RowShape::vector(2), 0.0, 1.0),
        observation_type: dtype,
        action: Space::Discrete { n: 3 },
        action_type: DType::I64,
    }
}

/// Returns agents with observations of every element type.
fn table() -> AgentTable {
    let types = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U8, DType::Bool];
    let agents = types.into_iter().enumerate().map(|(i, dtype)| match i {
        0 => (AgentId::name("left"), spaces(dtype)),
        i => (AgentId::Index(i as u32), spaces(dtype)),
    });
    AgentTable::new(agents).unwrap()
}

fn read(bytes: &[u8]) -> Result<AgentRows, AgentRowsError> {
    let mut rows = AgentRows::new();
    table().read_rows(RowKind::Observation, bytes, &mut rows).map(|()| rows)
}

#[test]
fn rows_of_every_type_travel_unchanged() {
    let mut rows = AgentRows::new();
    rows.set(&AgentId::Index(5), RowsRef::Bool(&[true, false]));
    rows.set(&AgentId::name("left"), RowsRef::F32(&[1.0, -0.5]));
    rows.set(&AgentId::Index(1), RowsRef::F64(&[0.1, 2.0]));
    rows.set(&AgentId::Index(2), RowsRef::I32(&[-1, 7]));
    rows.set(&AgentId::Index(3), RowsRef::I64(&[i64::MIN, 7]));
    rows.set(&AgentId::Index(4), RowsRef::U8(&[0, 255]));
    let mut bytes = Vec::new();
    table().write_rows(RowKind::Observation, &rows, &mut bytes).unwrap();
    assert_eq!(bytes[..14], [5, 0, 1, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0xbf]);
    let again = read(&bytes).unwrap();
    let text = |rows: &AgentRows| rows.iter().map(|row| format!("{row:?}")).collect::<Vec<_>>();
    assert_eq!(text(&again), text(&rows));
}

#[test]
fn bytes_that_are_no_rows_are_named() {
    let nan = [&[0, 0][..], &1.0f32.to_le_bytes(), &f32::NAN.to_le_bytes()].concat();
    let twice = [4, 0, 1, 2, 4, 0, 1, 2];
    let cases: [(&[u8], &str); 6] = [
        (&[6, 0], "there is no agent number 6, the last one is 5"),
        (&[4, 0, 1], "the bytes of agent 4 need 2 bytes, 1 are left"),
        (&[4, 0, 1, 2, 9], "a single byte is left at the end, an agent's number has two"),
        (&[5, 0, 1, 2], "element 1 of agent 5 is 2, a truth value is 0 or 1"),
        (&nan, "element 1 of agent left is not finite"),
        (&twice, "agent 4 is there twice"),
    ];
    for (bytes, message) in cases {
        assert_eq!(read(bytes).unwrap_err().to_string(), message);
    }
    assert!(read(&[]).unwrap().is_empty());
    let mut rows = AgentRows::new();
    rows.set(&AgentId::Index(4), RowsRef::I64(&[1, 2]));
    let error = table().write_rows(RowKind::Observation, &rows, &mut Vec::new()).unwrap_err();
    assert_eq!(error, AgentRowsError::OtherSpace(AgentId::Index(4)));
}

#[test]
fn returns_and_infos_travel_unchanged() {
    let of = |agent, reward, terminated, truncated| AgentReturn {
        agent,
        outcome: Outcome { reward, terminated, truncated },
    };
    let returns = [of(AgentId::Index(3), -1.5, true, false), of(AgentId::name("left"), 0.1, false, true)];
    let mut bytes = Vec::new();
    returns.iter().for_each(|of| table().write_return(of, &mut bytes).unwrap());
    assert_eq!(table().read_returns(&bytes).unwrap(), returns);
    bytes[10] = 4;
    let error = table().read_returns(&bytes).unwrap_err().to_string();
    assert_eq!(error, "the flags of agent 3 are 4; 1 is terminated, 2 truncated, 3 both");
    bytes[2..10].copy_from_slice(&f64::INFINITY.to_le_bytes());
    assert!(matches!(table().read_returns(&bytes), Err(AgentRowsError::NotFinite { .. })));

    let mut bytes = Vec::new();
    table().write_info(&AgentId::Index(2), b"{}", &mut bytes).unwrap();
    assert_eq!(bytes, [2, 0, 2, 0, 0, 0, b'{', b'}']);
    assert_eq!(table().read_infos(&bytes).unwrap(), [(AgentId::Index(2), &b"{}"[..])]);
    let mut long = Vec::new();
    table().write_info(&AgentId::Index(2), &[b' '; AgentTable::MAX_INFO_BYTES + 1], &mut long).unwrap();
    let error = table().read_infos(&long).unwrap_err().to_string();
    assert_eq!(error, "the info of agent 2 has 16385 bytes, it may have 16384");
    bytes[5] = 0xff;
    assert!(matches!(table().read_infos(&bytes), Err(AgentRowsError::Short { found: 2, .. })));
}

#[test]
fn a_table_travels_as_text() {
    let spaces = table().spaces(7).unwrap();
    assert_eq!((spaces.max_episodes, AgentTable::of(&spaces)), (7, Ok(table())));
    let start =
        r#"[{"agent":"left","observation":{"type":"box","dtype":"float32","shape":[2],"low":[0.0],"high":[1.0]},"#;
    assert!(spaces.agents.starts_with(start), "{}", spaces.agents);
    for (bad, message) in [("[]", "0 agents"), ("{}", "the spaces cannot be read"), ("[", "the spaces cannot be read")]
    {
        let error = AgentTable::of(&Spaces { max_episodes: 1, agents: bad.into() }).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn agents_too_large_for_a_message_are_refused() {
    let twice = [0, 0].map(|_| (AgentId::SINGLE, spaces(DType::F32)));
    assert_eq!(AgentTable::new(twice), Err(AgentTableError::Twice(AgentId::SINGLE)));
    let with = |pixels| {
        let mut large = spaces(DType::U8);
        large.observation = Space::uniform(DType::U8, crate::column::RowShape::vector(pixels), 0.0, 255.0);
        AgentTable::new([(AgentId::SINGLE, large)])
    };
    assert!(with(262_092).is_ok());
    let message = "observations and actions of all agents have 262105 bytes together, a message at most 262104";
    assert_eq!(with(262_093).unwrap_err().to_string(), message);
    let mut unlike = spaces(DType::F32);
    let bounds: Vec<f32> = (0..30_000).map(|i| i as f32 + 0.5).collect();
    unlike.observation = Space::vector(&bounds, &bounds);
    assert!(matches!(
        AgentTable::new([(AgentId::SINGLE, unlike)]).unwrap().spaces(1),
        Err(AgentTableError::LongText(_))
    ));
}
