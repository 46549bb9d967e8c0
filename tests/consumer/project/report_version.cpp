// The smallest user of the library: prints the version that it is linked with.
#include <tessera/version.h>

#include <cstdio>

int main() {
  std::puts(tessera::version());
}
