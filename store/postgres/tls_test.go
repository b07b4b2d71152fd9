package postgres_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/postgres"
)

// TestServerMustShowACertificateForItsHost: with sslmode=verify-full, a server is used if its
// certificate is for the host in the URL and signed by the roots that the URL names, and
// nothing reaches any other.
func TestServerMustShowACertificateForItsHost(t *testing.T) {
	t.Parallel()
	authority, stranger := testenv.NewAuthority(t), testenv.NewAuthority(t)
	server := testenv.PrivatePostgresTLS(t, authority.Issue("127.0.0.1"))
	for name, test := range map[string]struct {
		host, roots, mode string
		refused           string // what the error says, if it is refused
	}{
		"right certificate":        {"127.0.0.1", authority.File, "verify-full", ""},
		"other name, verify-ca":    {"localhost", authority.File, "verify-ca", ""},
		"other name":               {"localhost", authority.File, "verify-full", "certificate"},
		"other authority":          {"127.0.0.1", stranger.File, "verify-full", "certificate"},
		"without TLS":              {"127.0.0.1", authority.File, "disable", "pg_hba.conf"},
		"authority of the machine": {"127.0.0.1", "", "verify-full", "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, err := url.Parse(server.URL())
			if err != nil {
				t.Fatal(err)
			}
			password, _ := u.User.Password()
			u.Host = test.host + ":" + u.Port()
			query := url.Values{"sslmode": {test.mode}, "pool_max_conns": {"4"}}
			if test.roots != "" {
				query.Set("sslrootcert", test.roots)
			}
			u.RawQuery = query.Encode()
			pool, err := pgxpool.New(t.Context(), u.String())
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			cfg := postgres.Config{Schema: testenv.Name(t)}
			store, err := postgres.New(pool, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if test.refused == "" {
				usable(t, pool, store, cfg)
				return
			}
			_, err = store.Stats(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.refused) || strings.Contains(err.Error(), password) {
				t.Errorf("error = %v", err)
			}
		})
	}
}

// usable writes an event and reads it.
func usable(t *testing.T, pool *pgxpool.Pool, store *postgres.Store, cfg postgres.Config) {
	t.Helper()
	if _, err := postgres.Migrate(t.Context(), pool, cfg); err != nil {
		t.Fatal(err)
	}
	var encrypted bool
	err := pool.QueryRow(t.Context(), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted)
	if err != nil || !encrypted {
		t.Errorf("encrypted: %v, %v", encrypted, err)
	}
	r := &rig{T: t, Store: store, pool: pool}
	if queued := r.write(event("key", "payload")); len(queued) != 1 {
		t.Errorf("queue: %v", queued)
	}
}
