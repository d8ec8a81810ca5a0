<?php
/* Installs the site once, with two accounts that have application passwords, and prints those as JSON. */
define('WP_INSTALLING', true);
$_SERVER += ['HTTP_HOST' => '127.0.0.1', 'SERVER_PROTOCOL' => 'HTTP/1.1', 'REQUEST_METHOD' => 'GET'];
function wp_new_blog_notification(...$given) {
}
require $argv[1] . '/wp-load.php';
require ABSPATH . 'wp-admin/includes/upgrade.php';
global $wpdb;
if (!is_blog_installed()) {
    wp_install('Site', 'bot', 'bot@example.org', true, '', wp_generate_password(24));
    update_option('permalink_structure', '/%postname%/');
    $wpdb->query("CREATE TABLE {$wpdb->prefix}trueup_effects (
        seq BIGINT PRIMARY KEY AUTO_INCREMENT, post BIGINT NOT NULL, action VARCHAR(20) NOT NULL)");
}
/* Whoever may see raw values may edit: WordPress has no right to only read them. This account cannot publish or delete. */
$rights = ['read', 'edit_posts', 'edit_others_posts', 'edit_published_posts', 'edit_private_posts', 'read_private_posts'];
remove_role('reader');
add_role('reader', 'Reader', array_fill_keys($rights, true));
if (!get_user_by('login', 'reader')) {
    wp_create_user('reader', wp_generate_password(24), 'reader@example.org');
}
$passwords = [];
foreach (['bot', 'reader'] as $name) {
    $user = get_user_by('login', $name);
    if ($name === 'reader') {
        $user->set_role('reader');
    }
    WP_Application_Passwords::delete_all_application_passwords($user->ID);
    [$passwords[$name]] = WP_Application_Passwords::create_new_application_password($user->ID, ['name' => 'stand']);
}
echo json_encode($passwords);
