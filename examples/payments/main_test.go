package main

import (
	"os"
	"testing"

	"github.com/boxpair/boxpair/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestEveryOrderIsChargedOnceByAServiceThatIsKilled(t *testing.T) {
	for name, url := range map[string]string{"sqlite": "", "postgres": testenv.Postgres(t)} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(envDatabase, url)
			r, err := run(t.Context(), []string{os.Args[0]}, 16, 3)
			if err != nil || !r.OK || r.Kills != 3 || r.Repeated == 0 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}
