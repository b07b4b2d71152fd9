package idgen

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/internal/testenv"
)

// The rules of the package comment for writers in SQL: the name built from its parts, its UUIDv5,
// and both ways to a shard.
const (
	sqlID = `
SELECT name, id, get_byte(uuid_send(id), 15) % $3
FROM (SELECT string_agg(octet_length(part) || ':' || part || ',', '' ORDER BY n) AS name
      FROM unnest($1::text[]) WITH ORDINALITY AS p (part, n)) AS encoded,
     LATERAL uuid_generate_v5($2, name) AS id`

	sqlShard = `SELECT get_byte(sha256(convert_to($1::text, 'UTF8')), 0) % $2`

	sqlShardOfBytes = `SELECT get_byte(sha256($1::bytea), 0) % $2`
)

func TestPostgreSQLReproducesTheVectors(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), `CREATE EXTENSION "uuid-ossp"`); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	var file vectors
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	texts := 0
	for _, v := range file.IDs {
		if !v.Text {
			continue
		}
		texts++
		var name string
		var id uuid.UUID
		var shard int
		parts := append([]string{v.Kind}, v.Parts...)
		if err := conn.QueryRow(t.Context(), sqlID, parts, file.Namespace, file.Shards).Scan(&name, &id, &shard); err != nil {
			t.Fatalf("%s, %s: %v", v.Kind, v.Case, err)
		}
		if name != v.Name || id != v.ID || shard != v.Shard {
			t.Errorf("%s, %s: SQL says %q, %v, shard %d; want %q, %v, shard %d", v.Kind, v.Case, name, id, shard, v.Name, v.ID, v.Shard)
		}
	}
	for _, v := range file.Keys {
		query, arg := sqlShardOfBytes, any([]byte(unhex(t, v.KeyHex)))
		if v.Text {
			texts++
			query, arg = sqlShard, v.Key
		}
		var shard int
		if err := conn.QueryRow(t.Context(), query, arg, file.Shards).Scan(&shard); err != nil {
			t.Fatalf("key %s: %v", v.Case, err)
		}
		if shard != v.Shard {
			t.Errorf("key %s: SQL says shard %d, want %d", v.Case, shard, v.Shard)
		}
	}
	if texts < 30 {
		t.Errorf("only %d vectors are text", texts)
	}
}
