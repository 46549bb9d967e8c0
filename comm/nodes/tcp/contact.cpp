// A contact as text, and the rule of protection.
#include "comm/nodes/tcp/contact.h"

#include "base/error.h"
#include "comm/control/wire.h"

namespace tessera::comm {

std::string encode(const Contact& contact) {
  control::Writer writer;
  writer.text(contact.machine);
  writer.text(contact.address);
  writer.number(contact.port);
  writer.number(contact.secret);
  writer.number(contact.protection);
  writer.number(contact.aes);
  return writer.bytes();
}

Contact decode_contact(std::string_view text) {
  control::Reader reader(text);
  Contact contact;
  contact.machine = reader.text();
  contact.address = reader.text();
  contact.port = reader.number<std::int32_t>();
  contact.secret = reader.number<Contact::Secret>();
  const auto protection = reader.number<std::uint8_t>();
  TESSERA_CHECK(protection <= static_cast<std::uint8_t>(Protection::encrypted),
                ErrorCode::rank_failed,
                "a rank announces an unknown protection of data ({}): use one version of Tessera "
                "on all hosts",
                protection);
  contact.protection = static_cast<Protection>(protection);
  contact.aes = reader.number<std::uint8_t>() != 0;
  return contact;
}

Protection protection_between(const Contact& one, const Contact& other) {
  if (one.protection == Protection::encrypted) return one.protection;
  return one.machine == other.machine ? Protection::none : one.protection;
}

}  // namespace tessera::comm
