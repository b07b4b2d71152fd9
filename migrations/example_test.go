package migrations_test

import (
	"fmt"
	"log"
	"strings"

	"github.com/boxpair/boxpair/migrations"
)

// The owner of the tables runs the grants after every migration. Here the role of a web service
// gets the privileges for idempotent requests; only the GRANT lines are shown.
func ExamplePostgresGrants() {
	names, err := migrations.PostgresNames("shop", "")
	if err != nil {
		log.Fatal(err)
	}
	grants, err := migrations.PostgresGrants(names, migrations.Roles{Requests: "web"})
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(grants) {
		if strings.Contains(line, "GRANT") || strings.Contains(line, " ON ") {
			fmt.Println(strings.TrimSpace(line))
		}
	}
	// Output:
	// GRANT USAGE ON SCHEMA "shop" TO "web";
	// GRANT SELECT, INSERT (scope, key, fingerprint), UPDATE (status, header, body), DELETE
	// ON "shop"."inbox_requests" TO "web";
	// GRANT SELECT ON "shop"."schema_migrations" TO "web";
}
